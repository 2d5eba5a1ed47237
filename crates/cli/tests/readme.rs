//! The commands of the README, run as they stand there.
#![allow(missing_docs)]

#[test]
fn readme_commands_answer_what_it_says() {
    trycmd::TestCases::new().case("../../README.md");
}
