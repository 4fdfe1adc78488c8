//! `--output`: the format in which a command prints.

use clap::{Args, ValueEnum};

/// Flag of every command that prints a table or JSON.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArgs {
    /// Format of the output
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
}

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// Text for people; lists are a table
    Table,
    /// The same, with all columns
    Wide,
    /// JSON for scripts; a list is one object per line
    Json,
}

impl OutputArgs {
    /// True if the output is JSON.
    pub(crate) fn is_json(self) -> bool {
        self.output == OutputFormat::Json
    }

    /// True if a table has all its columns.
    pub(crate) fn is_wide(self) -> bool {
        self.output == OutputFormat::Wide
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        output: OutputArgs,
    }

    #[test]
    fn the_format_is_a_table_unless_another_is_named() {
        let parsed = |flags: &[&str]| Command::try_parse_from([&["x"], flags].concat());
        let output = parsed(&[]).unwrap().output;
        assert!(!output.is_json() && !output.is_wide());
        assert!(parsed(&["-o", "json"]).unwrap().output.is_json());
        assert!(parsed(&["--output=wide"]).unwrap().output.is_wide());
        assert!(parsed(&["-o", "yaml"]).is_err());
    }
}
