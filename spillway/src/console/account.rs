//! `spillway console user` and `token`: who may use the console. They edit the files that the console reads; a running
//! console takes a change within seconds.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use spillway_console::Role;
use spillway_console::password::{LENGTH_MAX, LENGTH_MIN, PasswordHash};
use spillway_console::tokens::{TokenEntry, TokenList};
use spillway_console::users::{AccessGrant, UserEntry, UserList, ensure_name};
use zeroize::Zeroizing;

use super::files::text;
use crate::failure::Failure;
use crate::out::{line, table};

/// Mode of a file that is new: only its owner reads it.
const NEW_MODE: u32 = 0o600;

#[derive(Debug, Subcommand)]
pub(super) enum AccountCommand {
    /// Users who log in with a password, or whom a trusted proxy names
    #[command(subcommand)]
    User(UserAction),
    /// API tokens for scripts
    #[command(subcommand)]
    Token(TokenAction),
}

#[derive(Debug, Subcommand)]
pub(super) enum UserAction {
    /// Add a user; the password is asked for, or read from the first line of standard input
    Add {
        /// Name: letters, digits and any of ._@+-
        name: String,
        #[command(flatten)]
        grant: GrantArgs,
        /// No password: the user comes by a trusted proxy only
        #[arg(long)]
        no_password: bool,
    },
    /// List the users with their roles
    List,
    /// Remove a user, whose sessions end
    Remove {
        /// Name, as `spillway console user list` prints it
        name: String,
    },
    /// Set another password of a user, whose sessions end
    Password {
        /// Name, as `spillway console user list` prints it
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum TokenAction {
    /// Add an API token and print it; it can't be printed again
    Add {
        /// Name: letters, digits and any of ._@+-
        name: String,
        #[command(flatten)]
        grant: GrantArgs,
    },
    /// List the tokens with their roles
    List,
    /// Remove a token
    Remove {
        /// Name, as `spillway console token list` prints it
        name: String,
    },
}

/// Permissions of a user or token.
#[derive(Debug, Clone, Args)]
pub(super) struct GrantArgs {
    /// Role: viewer (numbers), support (also single webhooks, and replays of dead letters), operator (also
    /// pause, resume and drop) or admin (also drops of what is a legal duty)
    #[arg(long, value_parser = |text: &str| text.parse::<Role>())]
    role: Role,

    /// May also see bodies and headers of webhooks: personal data
    #[arg(long)]
    personal: bool,
}

impl GrantArgs {
    fn grant(&self) -> AccessGrant {
        AccessGrant { role: self.role, sees_personal_data: self.personal }
    }
}

/// Runs the command on the files that the settings name.
pub(super) fn run(
    command: AccountCommand,
    users_file: Option<&Path>,
    tokens_file: Option<&Path>,
) -> Result<(), Failure> {
    match command {
        AccountCommand::User(action) => {
            change_users(action, named(users_file, "users-file", "CONSOLE_USERS_FILE")?)
        }
        AccountCommand::Token(action) => {
            change_tokens(action, named(tokens_file, "tokens-file", "CONSOLE_TOKENS_FILE")?)
        }
    }
}

fn named<'a>(file: Option<&'a Path>, flag: &str, setting: &str) -> Result<&'a Path, Failure> {
    let missing = || Failure::Usage(format!("name the file with --{flag} or {setting}"));
    file.filter(|file| !file.as_os_str().is_empty()).ok_or_else(missing)
}

fn change_users(action: UserAction, file: &Path) -> Result<(), Failure> {
    match action {
        UserAction::Add { name, grant, no_password } => {
            ensure_name(&name).map_err(Failure::Usage)?;
            ensure_absent(file, &name)?;
            let password = if no_password { None } else { Some(new_password(&name)?) };
            let grant = grant.grant();
            let user = UserEntry { name, grant, password };
            edit(file, &user.name, Some(&user.to_string()), check_users)?;
            line(format_args!("{} is {grant}", user.name))?;
        }
        UserAction::List => {
            let users = UserList::parse(&old_text(file)?).map_err(|told| in_file(file, &told))?;
            let rows = users.0.iter().map(|user| {
                let password = if user.password.is_some() { "yes" } else { "no" };
                granted(&user.name, user.grant).into_iter().chain([password.to_owned()])
            });
            line(table(&["NAME", "ROLE", "PERSONAL", "PASSWORD"], rows))?;
        }
        UserAction::Remove { name } => {
            ensure_present(file, &name)?;
            edit(file, &name, None, check_users)?;
            line(format_args!("{name} is removed"))?;
        }
        UserAction::Password { name } => {
            let users = UserList::parse(&old_text(file)?).map_err(|told| in_file(file, &told))?;
            let user = users.find(&name).cloned();
            let user = user.ok_or_else(|| absent(file, &name))?;
            let user = UserEntry { password: Some(new_password(&name)?), ..user };
            edit(file, &name, Some(&user.to_string()), check_users)?;
            line(format_args!("{name} has another password"))?;
        }
    }
    Ok(())
}

fn change_tokens(action: TokenAction, file: &Path) -> Result<(), Failure> {
    match action {
        TokenAction::Add { name, grant } => {
            ensure_name(&name).map_err(Failure::Usage)?;
            ensure_absent(file, &name)?;
            let (entry, token) = TokenEntry::create(name, grant.grant());
            edit(file, &entry.name, Some(&entry.to_string()), check_tokens)?;
            eprintln!("send it as `Authorization: Bearer …`; it is not shown again");
            line(token.as_str())?;
        }
        TokenAction::List => {
            let tokens = TokenList::parse(&old_text(file)?).map_err(|told| in_file(file, &told))?;
            let rows = tokens.0.iter().map(|token| granted(&token.name, token.grant));
            line(table(&["NAME", "ROLE", "PERSONAL"], rows))?;
        }
        TokenAction::Remove { name } => {
            ensure_present(file, &name)?;
            edit(file, &name, None, check_tokens)?;
            line(format_args!("{name} is removed"))?;
        }
    }
    Ok(())
}

fn granted(name: &str, grant: AccessGrant) -> [String; 3] {
    let personal = if grant.sees_personal_data { "yes" } else { "no" };
    [name.to_owned(), grant.role.to_string(), personal.to_owned()]
}

fn check_users(text: &str) -> Result<(), String> {
    UserList::parse(text).map(|_| ())
}

fn check_tokens(text: &str) -> Result<(), String> {
    TokenList::parse(text).map(|_| ())
}

fn in_file(file: &Path, problem: &str) -> Failure {
    Failure::Failed(format!("{}, {problem}", file.display()))
}

fn absent(file: &Path, name: &str) -> Failure {
    Failure::Failed(format!("{} has no {name}", file.display()))
}

fn ensure_present(file: &Path, name: &str) -> Result<(), Failure> {
    let is_there = old_text(file)?.lines().any(|line| is_of(line, name));
    if is_there { Ok(()) } else { Err(absent(file, name)) }
}

fn ensure_absent(file: &Path, name: &str) -> Result<(), Failure> {
    if old_text(file)?.lines().any(|line| is_of(line, name)) {
        let file = file.display();
        return Err(Failure::Failed(format!("{file} has {name} already: remove that one first")));
    }
    Ok(())
}

/// The text of a file, which is empty if there is none yet.
fn old_text(file: &Path) -> Result<String, Failure> {
    match file.try_exists() {
        Ok(false) => Ok(String::new()),
        _ => text(file).map_err(Failure::Failed),
    }
}

fn is_of(line: &str, name: &str) -> bool {
    line.split(':').next().is_some_and(|first| first.trim() == name)
}

/// Replaces the line of a name, adds or removes it. Other lines and comments stay as they are.
fn edit(
    file: &Path,
    name: &str,
    new: Option<&str>,
    check: fn(&str) -> Result<(), String>,
) -> Result<(), Failure> {
    let old = old_text(file)?;
    let mut lines: Vec<&str> = Vec::new();
    let mut new = new;
    for line in old.lines() {
        match is_of(line, name) {
            true => lines.extend(new.take()),
            false => lines.push(line),
        }
    }
    lines.extend(new);
    let text: String = lines.iter().flat_map(|line| [*line, "\n"]).collect();
    check(&text).map_err(|problem| in_file(file, &problem))?;
    replace(file, &text)
        .map_err(|error| Failure::Failed(format!("cannot write {}: {error}", file.display())))
}

/// Writes a file as a whole: the console reads the old one or the new one. Owner and mode stay.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let before = fs::metadata(&file).ok();
    let mut new = file.clone().into_os_string();
    new.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(new);
    let filled = fill(&new, before.as_ref(), text).and_then(|()| fs::rename(&new, &file));
    if filled.is_err() {
        fs::remove_file(&new).ok();
    }
    filled
}

fn fill(new: &Path, before: Option<&fs::Metadata>, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(NEW_MODE).open(new)?;
    if let Some(before) = before {
        fchown(&file, Some(before.uid()), Some(before.gid()))?;
        file.set_permissions(fs::Permissions::from_mode(before.mode() & 0o7777))?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Asks for a new password, or reads it from standard input, and makes its hash.
fn new_password(name: &str) -> Result<PasswordHash, Failure> {
    let password = match io::stdin().is_terminal() {
        true => {
            let first = asked(&format!("password of {name}: "))?;
            if *first != *asked("the same again: ")? {
                return Err(Failure::Failed("the two passwords differ".to_owned()));
            }
            first
        }
        false => first_line()?,
    };
    ensure_good(&password).map_err(Failure::Failed)?;
    Ok(PasswordHash::of(password.as_bytes()))
}

fn ensure_good(password: &str) -> Result<(), String> {
    if password.chars().count() < LENGTH_MIN {
        return Err(format!("the password has fewer than {LENGTH_MIN} characters"));
    }
    if password.len() > LENGTH_MAX {
        return Err(format!("the password has more than {LENGTH_MAX} bytes"));
    }
    Ok(())
}

/// Reads a line from the terminal, which does not show it.
fn asked(prompt: &str) -> Result<Zeroizing<String>, Failure> {
    eprint!("{prompt}");
    let shown = tcgetattr(io::stdin()).map_err(io::Error::from)?;
    let mut hidden = shown.clone();
    hidden.local_modes -= LocalModes::ECHO;
    tcsetattr(io::stdin(), OptionalActions::Flush, &hidden).map_err(io::Error::from)?;
    let read = first_line();
    tcsetattr(io::stdin(), OptionalActions::Flush, &shown).map_err(io::Error::from)?;
    eprintln!();
    read
}

fn first_line() -> Result<Zeroizing<String>, Failure> {
    let mut line = Zeroizing::new(String::new());
    let read = io::stdin().lock().read_line(&mut line);
    read.map_err(|error| Failure::Failed(format!("cannot read the password: {error}")))?;
    Ok(Zeroizing::new(line.trim_end_matches(['\r', '\n']).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_edited_and_the_others_and_the_mode_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("users");
        edit(&file, "mia", Some("mia:viewer:*"), check_users).expect("a new file");
        let mode = || fs::metadata(&file).expect("the file").mode() & 0o777;
        assert_eq!(mode(), NEW_MODE);
        fs::write(&file, "# the team\nmia:viewer:*\n\nleo:admin:*").expect("write");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("chmod");
        edit(&file, "mia", Some("mia:support:*"), check_users).expect("replaced");
        edit(&file, "eve", Some("eve:viewer:*"), check_users).expect("added");
        let text = || fs::read_to_string(&file).expect("the file");
        assert_eq!(text(), "# the team\nmia:support:*\n\nleo:admin:*\neve:viewer:*\n");
        assert_eq!(mode(), 0o640);
        edit(&file, "mia", None, check_users).expect("removed");
        assert_eq!(text(), "# the team\n\nleo:admin:*\neve:viewer:*\n");
        assert!(edit(&file, "leo", Some("leo:boss:*"), check_users).is_err());
        assert!(text().contains("leo:admin"), "a mistake changes nothing");
        assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 1);
    }

    #[test]
    fn a_name_is_added_once_and_removed_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("tokens");
        let grant = GrantArgs { role: Role::Viewer, personal: false };
        let add = || TokenAction::Add { name: "deploy".to_owned(), grant: grant.clone() };
        change_tokens(add(), &file).expect("added");
        assert!(change_tokens(add(), &file).is_err());
        let remove = || TokenAction::Remove { name: "deploy".to_owned() };
        change_tokens(remove(), &file).expect("removed");
        assert!(change_tokens(remove(), &file).is_err());
        let add = UserAction::Add { name: "a:b".to_owned(), grant, no_password: true };
        assert!(change_users(add, &file).is_err_and(|told| told.to_string().contains("no name")));
    }

    #[test]
    fn a_short_password_is_refused() {
        assert!(ensure_good("elevenchars").is_err() && ensure_good("twelve chars").is_ok());
        assert!(ensure_good(&"x".repeat(LENGTH_MAX + 1)).is_err());
    }
}
