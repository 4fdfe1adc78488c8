//! Writes signed, distinct webhooks for a load generator. See bench/README.md.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::num::NonZeroU64;
use std::path::PathBuf;

use anyhow::Context;
use bench::encode::{Encoder, Format};
use bench::event::EventHead;
use bench::product::Products;
use bench::signature::Secret;
use bench::stream;
use bench::target::Target;
use bench::webhook::Maker;
use clap::Parser;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Writes signed, distinct Shopify webhooks for a load generator.
#[derive(Parser)]
struct Options {
    /// Number of webhooks.
    #[arg(long, default_value_t = 10_000)]
    count: u64,
    /// Approximate size of each body, in bytes.
    #[arg(long, default_value_t = 5_300, value_parser = clap::value_parser!(u32).range(300..=16_777_216))]
    size: u32,
    /// Number of shops that send the webhooks.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    shops: u32,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::VegetaJson)]
    format: Format,
    /// Seed. Other seeds give other products and ids.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Template of request line and headers; its `@body` is the product's template.
    #[arg(long, default_value = "loadtest")]
    targets: PathBuf,
    /// URL instead of the one in the template.
    #[arg(long)]
    url: Option<String>,
    /// Client secret of the app.
    #[arg(long, env = "SHOPIFY_CLIENT_SECRET", hide_env_values = true)]
    shopify_client_secret: String,
    /// Writes to this file instead of standard output.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Directory for the bodies of the format vegeta-http, one file each.
    #[arg(long, default_value = "bodies")]
    bodies: PathBuf,
    /// Time used instead of the clock, so that runs give identical bytes (RFC 3339).
    #[arg(long, value_parser = |text: &str| OffsetDateTime::parse(text, &Rfc3339))]
    now: Option<OffsetDateTime>,
    /// Number of threads.
    #[arg(long, default_value = "2")]
    threads: NonZeroU64,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let mut target = Target::read(&options.targets)
        .with_context(|| format!("target template {}", options.targets.display()))?;
    target.url = options.url.unwrap_or(target.url);
    let body = fs::read(&target.body)
        .with_context(|| format!("cannot read the body {}", target.body.display()))?;
    let product = serde_json::from_slice(&body)
        .with_context(|| format!("{} is not a product", target.body.display()))?;
    if options.format == Format::VegetaHttp {
        fs::create_dir_all(&options.bodies)
            .with_context(|| format!("cannot create {}", options.bodies.display()))?;
    }
    let event = EventHead::of(&target).map_err(anyhow::Error::msg);
    let event = event.with_context(|| format!("target template {}", options.targets.display()))?;
    let maker = Maker {
        event,
        products: Products::new(product, options.size as usize),
        secret: Secret::new(&options.shopify_client_secret),
        shops: options.shops,
        seed: options.seed,
        now: options.now,
    };
    let encoder = Encoder { format: options.format, target, bodies: options.bodies };
    let out: Box<dyn Write> = match &options.out {
        Some(path) => Box::new(
            File::create(path).with_context(|| format!("cannot create {}", path.display()))?,
        ),
        None => Box::new(io::stdout()),
    };
    let out = BufWriter::with_capacity(1 << 20, out);
    match stream::write_all(&maker, &encoder, options.count, options.threads.get(), out) {
        // The reader closed its end, which is no error.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the webhooks"),
    }
}
