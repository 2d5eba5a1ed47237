//! `bindgen FILE.wasm FOLDER`: the module with its JavaScript and TypeScript side, as `FOLDER/napkin.js`, `napkin.d.ts` and
//! `napkin_bg.wasm`.

use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [input, folder] = words.as_slice() else {
        eprintln!("bindgen FILE.wasm FOLDER");
        return ExitCode::from(2);
    };
    let mut bindgen = Bindgen::new();
    // The page says where the module is: beside it, or in it.
    let made = bindgen.web(true).and_then(|bindgen| {
        // Names are for who looks at the module itself.
        let bindgen = bindgen.remove_name_section(true).remove_producers_section(true);
        bindgen.input_path(input).out_name("napkin").typescript(true).omit_default_module_path(true).generate(folder)
    });
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bindgen: {error:#}");
            ExitCode::FAILURE
        }
    }
}
