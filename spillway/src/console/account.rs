//! `spillway console user` and `token`: who may use the console. They edit the files that the console reads; a running
//! console takes a change within seconds.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use rustix::fs::{FlockOperation, flock};
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
            // Before the password is typed, and again when the file is written.
            old_text(file).and_then(|text| ensure_absent(file, &text, &name))?;
            let password = if no_password { None } else { Some(new_password(&name)?) };
            let grant = grant.grant();
            let user = UserEntry { name, grant, password };
            edit(file, &user.name, check_users, |text| {
                ensure_absent(file, text, &user.name)?;
                Ok(Some(user.to_string()))
            })?;
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
            remove(file, &name, check_users)?;
            line(format_args!("{name} is removed"))?;
        }
        UserAction::Password { name } => {
            user_of(file, &old_text(file)?, &name)?;
            set_password(file, &name, new_password(&name)?)?;
            line(format_args!("{name} has another password"))?;
        }
    }
    Ok(())
}

fn change_tokens(action: TokenAction, file: &Path) -> Result<(), Failure> {
    match action {
        TokenAction::Add { name, grant } => {
            ensure_name(&name).map_err(Failure::Usage)?;
            let (entry, token) = TokenEntry::create(name, grant.grant());
            edit(file, &entry.name, check_tokens, |text| {
                ensure_absent(file, text, &entry.name)?;
                Ok(Some(entry.to_string()))
            })?;
            eprintln!("send it as `Authorization: Bearer …`; it is not shown again");
            line(token.as_str())?;
        }
        TokenAction::List => {
            let tokens = TokenList::parse(&old_text(file)?).map_err(|told| in_file(file, &told))?;
            let rows = tokens.0.iter().map(|token| granted(&token.name, token.grant));
            line(table(&["NAME", "ROLE", "PERSONAL"], rows))?;
        }
        TokenAction::Remove { name } => {
            remove(file, &name, check_tokens)?;
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

fn remove(file: &Path, name: &str, check: fn(&str) -> Result<(), String>) -> Result<(), Failure> {
    edit(file, name, check, |text| {
        let is_there = text.lines().any(|line| is_of(line, name));
        if is_there { Ok(None) } else { Err(absent(file, name)) }
    })
}

/// Gives a user another password. What the file says else of the user stays, also if it changed while the password was
/// typed.
fn set_password(file: &Path, name: &str, password: PasswordHash) -> Result<(), Failure> {
    edit(file, name, check_users, |text| {
        let user = user_of(file, text, name)?;
        Ok(Some(UserEntry { password: Some(password), ..user }.to_string()))
    })
}

fn user_of(file: &Path, text: &str, name: &str) -> Result<UserEntry, Failure> {
    let users = UserList::parse(text).map_err(|told| in_file(file, &told))?;
    users.find(name).cloned().ok_or_else(|| absent(file, name))
}

fn ensure_absent(file: &Path, text: &str, name: &str) -> Result<(), Failure> {
    if text.lines().any(|line| is_of(line, name)) {
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

/// Replaces the line of a name, adds or removes it. `new` makes it of the text as it is; other lines and comments stay.
/// Another command at the same time waits: it would write what it read before, and a removed user would come back.
fn edit(
    file: &Path,
    name: &str,
    check: fn(&str) -> Result<(), String>,
    new: impl FnOnce(&str) -> Result<Option<String>, Failure>,
) -> Result<(), Failure> {
    // Of a link, the file that it leads to.
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let _lock = lock(&file)?;
    let old = old_text(&file)?;
    let mut new = new(&old)?;
    let mut lines: Vec<String> = Vec::new();
    for line in old.lines() {
        match is_of(line, name) {
            true => lines.extend(new.take()),
            false => lines.push(line.to_owned()),
        }
    }
    lines.extend(new);
    let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    check(&text).map_err(|problem| in_file(&file, &problem))?;
    replace(&file, &text)
        .map_err(|error| Failure::Failed(format!("cannot write {}: {error}", file.display())))
}

/// Waits until no other command edits the file. Until the lock is dropped, none does. Its own file stays: the one that it
/// guards is replaced with each change.
fn lock(file: &Path) -> Result<File, Failure> {
    let path = beside(file, ".lock");
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(false).mode(NEW_MODE).open(&path);
    let locked = opened.and_then(|lock| {
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    });
    locked.map_err(|error| Failure::Failed(format!("cannot lock {}: {error}", path.display())))
}

/// Path of a file in the same directory, with more at the end of its name.
fn beside(file: &Path, more: &str) -> PathBuf {
    let mut path = file.to_owned().into_os_string();
    path.push(more);
    PathBuf::from(path)
}

/// Writes a file as a whole: the console reads the old one or the new one. Owner and mode stay. After that, it is on disk.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let before = fs::metadata(file).ok();
    let new = beside(file, &format!(".new-{}", std::process::id()));
    let filled = fill(&new, before.as_ref(), text).and_then(|()| fs::rename(&new, file));
    if filled.is_err() {
        fs::remove_file(&new).ok();
    }
    filled?;
    let directory = file.parent().filter(|path| !path.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
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

    fn set(file: &Path, name: &str, line: Option<&str>) -> Result<(), Failure> {
        edit(file, name, check_users, |_| Ok(line.map(str::to_owned)))
    }

    #[test]
    fn one_line_is_edited_and_the_others_and_the_mode_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("users");
        set(&file, "mia", Some("mia:viewer:*")).expect("a new file");
        let mode = || fs::metadata(&file).expect("the file").mode() & 0o777;
        assert_eq!(mode(), NEW_MODE);
        fs::write(&file, "# the team\nmia:viewer:*\n\nleo:admin:*").expect("write");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("chmod");
        set(&file, "mia", Some("mia:support:*")).expect("replaced");
        set(&file, "eve", Some("eve:viewer:*")).expect("added");
        let text = || fs::read_to_string(&file).expect("the file");
        assert_eq!(text(), "# the team\nmia:support:*\n\nleo:admin:*\neve:viewer:*\n");
        assert_eq!(mode(), 0o640);
        set(&file, "mia", None).expect("removed");
        assert_eq!(text(), "# the team\n\nleo:admin:*\neve:viewer:*\n");
        assert!(set(&file, "leo", Some("leo:boss:*")).is_err());
        assert!(text().contains("leo:admin"), "a mistake changes nothing");
        let left = fs::read_dir(directory.path()).expect("a directory");
        assert_eq!(left.count(), 2, "the file and its lock");
    }

    #[test]
    fn commands_at_once_undo_nothing_of_each_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = &directory.path().join("users");
        let old: Vec<String> = (0..20).map(|number| format!("old{number}:viewer:*\n")).collect();
        fs::write(file, old.concat()).expect("write");
        std::thread::scope(|scope| {
            for number in 0..20 {
                scope.spawn(move || {
                    remove(file, &format!("old{number}"), check_users).expect("it was there");
                });
                scope.spawn(move || {
                    let name = format!("new{number}");
                    set(file, &name, Some(&format!("{name}:viewer:*"))).expect("added");
                });
            }
        });
        let text = fs::read_to_string(file).expect("the file");
        assert!(text.lines().count() == 20 && !text.contains("old"), "{text}");
    }

    #[test]
    fn a_password_brings_back_no_user_and_no_role() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("users");
        let hash = || PasswordHash::of(b"correct horse battery");
        set(&file, "mia", Some("mia:viewer:*")).expect("changed while the password was typed");
        set_password(&file, "mia", hash()).expect("a password");
        let text = fs::read_to_string(&file).expect("the file");
        assert!(text.starts_with("mia:viewer:$argon2id$"), "{text}");
        remove(&file, "mia", check_users).expect("removed while the password was typed");
        assert!(set_password(&file, "mia", hash()).is_err());
        assert_eq!(fs::read_to_string(&file).expect("the file"), "");
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
