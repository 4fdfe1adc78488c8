//! Generates man pages and shell completions from the parsed flags themselves, so that they cannot
//! be out of date. `--generate DIRECTORY` is for packaging. No setting is read for it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::exit;

/// Section of the manual for administration commands and servers.
pub const ADMINISTRATION: &str = "8";
/// Section of the manual for user commands.
pub const COMMANDS: &str = "1";

/// Writes man pages and completions of `command`, if the command line is `--generate DIRECTORY`.
pub fn on_demand(command: Command, section: &str) -> Option<ExitCode> {
    let directory = directory(std::env::args_os())?;
    Some(match write(command, section, &directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("--generate: cannot write to {}: {error}", directory.display());
            ExitCode::from(exit::FAILED)
        }
    })
}

fn directory(mut arguments: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let is_asked = arguments.nth(1).as_deref() == Some(OsStr::new("--generate"));
    arguments.next().filter(|_| is_asked).map(PathBuf::from)
}

fn write(mut command: Command, section: &str, directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    // `help` repeats the pages, and would get a page for each command that it describes.
    let mut pages = command.clone().disable_help_subcommand(true);
    pages.build();
    write_pages(&pages, section, directory)?;
    let name = command.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, &name, directory)?;
    }
    Ok(())
}

fn write_pages(command: &Command, section: &str, directory: &Path) -> std::io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_pages(subcommand, section, directory)?;
    }
    let page = Man::new(command.clone()).section(section).manual("Spillway");
    let mut file = File::create(directory.join(page.get_filename()))?;
    page.render(&mut file)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn it_is_asked_for_by_the_first_flag_only() {
        let found = |list: &[&str]| directory(list.iter().map(OsString::from));
        assert_eq!(found(&["x", "--generate", "a"]), Some("a".into()));
        assert_eq!(found(&["x", "--generate"]), None);
        assert_eq!(found(&["x", "y", "--generate", "a"]), None);
        assert_eq!(found(&["x"]), None);
    }

    #[test]
    fn each_command_has_a_page_and_all_have_completions() {
        let directory = tempfile::tempdir().unwrap();
        let flag = Arg::new("level").long("level").help("How high").default_value("3");
        let command = Command::new("dam").about("Holds water").arg(flag);
        let command = command.subcommand(Command::new("open").about("Lets it go"));
        write(command, "8", directory.path()).unwrap();
        let read = |name| fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(read("dam.8").contains("[default: 3]"));
        assert!(read("dam-open.8").contains("Lets it go"));
        assert!(!directory.path().join("dam-help.8").exists());
        for completions in ["dam.bash", "_dam", "dam.fish"] {
            assert!(read(completions).contains("level"), "{completions}");
        }
    }
}
