//! Takes in Shopify webhooks: `POST` to any path, answered 200 once it is stored.

use std::process::ExitCode;

fn main() -> ExitCode {
    spillway_service::start::<request_receiver::settings::Written, _, _>(request_receiver::run)
}
