//! What can be asked, for who offers it in another form than a command line.

use clap::CommandFactory;

use crate::Asked;

/// A question with the flags it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takes {
    /// Its first word.
    pub name: String,
    /// What it answers.
    pub about: String,
    /// Its flags, in the order of its help.
    pub flags: Vec<Flag>,
}

/// A flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// With its dashes: `--seq-len`.
    pub name: String,
    /// What its value is called; none where it has no value.
    pub value: Option<String>,
    /// Whether it may be given more than once.
    pub repeats: bool,
    /// What it does.
    pub help: String,
    /// The group it stands in; may be empty.
    pub group: String,
}

/// All questions.
pub fn questions() -> Vec<Takes> {
    let mut asked = Asked::command();
    // Flags of every question are handed down to each.
    asked.build();
    asked
        .get_subcommands()
        .filter(|one| one.get_name() != "help" && !one.is_hide_set())
        .map(|one| Takes {
            name: one.get_name().to_owned(),
            about: text(one.get_about()),
            flags: one.get_arguments().filter_map(flag).collect(),
        })
        .collect()
}

/// Most commands that are named for a flag that another does not have.
const MOST_NAMED: usize = 3;

/// How a flag is asked for with the commands that have it, where these are few; plan or layout stands for all others.
pub fn having(flag: &str) -> Vec<String> {
    let all = questions();
    let having: Vec<&Takes> = all.iter().filter(|one| one.flags.iter().any(|own| own.name == flag)).collect();
    let of = |name: &str| having.iter().position(|one| one.name == name);
    let named = of("plan").or_else(|| of("layout")).map_or(&having[..], |at| &having[at..=at]);
    if named.len() > MOST_NAMED {
        return Vec::new();
    }
    let line = |one: &&Takes| {
        let value = one.flags.iter().find(|own| own.name == flag).and_then(|own| own.value.as_deref());
        let subject = if one.flags.iter().any(|own| own.name == "--set") { " MODEL" } else { "" };
        format!("napkin {}{subject} {flag} {}", one.name, value.unwrap_or_default()).trim_end().to_owned()
    };
    named.iter().map(line).collect()
}

fn flag(arg: &clap::Arg) -> Option<Flag> {
    let name = arg.get_long().filter(|name| *name != "help")?;
    let takes = arg.get_action().takes_values();
    let value = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    Some(Flag {
        name: format!("--{name}"),
        value: takes.then(|| value.unwrap_or_else(|| "VALUE".to_owned())),
        repeats: matches!(arg.get_action(), clap::ArgAction::Append),
        help: text(arg.get_help()),
        group: arg.get_help_heading().unwrap_or_default().to_owned(),
    })
}

fn text(styled: Option<&clap::builder::StyledStr>) -> String {
    styled.map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_of_the_command_line() {
        let all = questions();
        let ledger = all.iter().find(|one| one.name == "ledger").unwrap();
        let flag = |name: &str| ledger.flags.iter().find(|flag| flag.name == name);
        assert_eq!(flag("--seq-len").map(|flag| flag.value.as_deref()), Some(Some("N")));
        assert_eq!(flag("--timeline").map(|flag| flag.value.as_deref()), Some(None));
        assert_eq!(flag("--zero").map(|flag| flag.group.as_str()), Some("Layout"));
        assert!(flag("--set").unwrap().repeats && flag("--depth").is_some() && flag("--tokens").is_none());
        assert!(all.iter().all(|one| !one.about.is_empty() && one.flags.iter().all(|flag| !flag.help.is_empty())));
    }
}
