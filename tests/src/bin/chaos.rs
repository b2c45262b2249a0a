//! `chaos <scenario> <seconds> <relays> <seed>`, for `cargo xtask chaos`: runs a scenario against
//! servers of its own and ends with a line of JSON. The exit code is 1 unless all is as promised.

use std::process::ExitCode;
use std::time::Duration;

use outbox_tests::chaos;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [scenario, seconds, relays, seed] = arguments.as_slice() else {
        panic!("chaos <scenario> <seconds> <relays> <seed>");
    };
    let length = Duration::from_secs(seconds.parse().expect("seconds"));
    let relays = relays.parse().expect("a number of relays");
    let seed = seed.parse().expect("a seed");
    let program = relay_program();
    let is_clean = match scenario.as_str() {
        "storm" => {
            let report = chaos::storm(&program, length, relays, seed).await;
            eprintln!("{report}");
            println!("{}", report.json());
            report.is_clean()
        }
        "outage" => {
            let outage = chaos::outage(&program, length, relays, seed).await;
            eprintln!("{}\n{} events were parked", outage.report, outage.parked);
            println!("{}", outage.report.json());
            outage.is_clean()
        }
        "open-transaction" => {
            let comparison = chaos::open_transaction(&program, length, relays, seed).await;
            println!("{comparison}");
            comparison.is_clean()
        }
        unknown => panic!("no scenario is called {unknown}"),
    };
    if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// It was built beside this program.
fn relay_program() -> String {
    let own = std::env::current_exe().expect("this program has a path");
    own.with_file_name("relay").to_str().expect("the path is UTF-8").to_owned()
}
