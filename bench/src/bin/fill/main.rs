//! Fills a queue: stores webhooks of chosen shops, products and topics, all different, each until
//! it is answered with 200.
//!
//! Bodies and signatures are made in advance and used in turn. Ids, times and products are new in
//! every webhook, so none is a duplicate of another. The webhooks of a product are numbered in
//! `X-Bench-Sequence` and sent over one connection, so the receiver of the deliveries can check
//! their order.

mod supply;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bench::product::Products;
use bench::signature::Secret;
use bench::target::Target;
use clap::Parser;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use crate::supply::{Plan, Supply};

/// Time between two attempts to store the same webhook.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Largest accepted answer. An answer consists of a status and a few words.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Stores webhooks until each is answered with 200. Prints their number and rate.
#[derive(Parser)]
struct Options {
    /// Address of the receiver.
    #[arg(long, default_value = "127.0.0.1:8080")]
    address: SocketAddr,
    /// Number of webhooks.
    #[arg(long, default_value_t = 10_000)]
    count: u64,
    /// Number of connections, each in a closed loop.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    connections: u64,
    /// Webhooks per second; as fast as they are answered if not given.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Number of products, a multiple of the connections; a new one for each webhook if not given.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    products: Option<u64>,
    /// Number of the first product.
    #[arg(long, default_value_t = 1)]
    product_first: u64,
    /// Number of shops.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    shops: u64,
    /// Number of the first shop.
    #[arg(long, default_value_t = 0)]
    shop_first: u64,
    /// Topics that every shop sends, in turn.
    #[arg(long, value_delimiter = ',', default_value = "products/update")]
    topics: Vec<String>,
    /// Approximate size of each body, in bytes.
    #[arg(long, default_value_t = 5_300, value_parser = clap::value_parser!(u32).range(300..=16_777_216))]
    size: u32,
    /// Template of request line and headers; its `@body` is the product's template.
    #[arg(long, default_value = "loadtest")]
    targets: PathBuf,
    /// Client secret of the app.
    #[arg(long, env = "SHOPIFY_CLIENT_SECRET", hide_env_values = true)]
    shopify_client_secret: String,
}

// One thread, because the receiver under test shares the cores.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    if options.products.is_some_and(|products| products % options.connections != 0) {
        bail!("--products must be a multiple of --connections, so that each product keeps to one");
    }
    let target = Target::read(&options.targets)
        .with_context(|| format!("target template {}", options.targets.display()))?;
    let body = fs::read(&target.body)
        .with_context(|| format!("cannot read the body {}", target.body.display()))?;
    let product = serde_json::from_slice(&body)
        .with_context(|| format!("{} is not a product", target.body.display()))?;
    let products = Products::new(product, options.size as usize);
    let secret = Secret::new(&options.shopify_client_secret);
    let plan = Plan {
        products: options.products,
        product_first: options.product_first,
        shops: options.shops,
        shop_first: options.shop_first,
        topics: options.topics.clone(),
    };
    let supply = Arc::new(Supply::new(target, &products, &secret, plan));
    let options = Arc::new(options);
    let began = Instant::now();
    let mut senders = JoinSet::new();
    for connection in 0..options.connections {
        senders.spawn(send(connection, Arc::clone(&options), Arc::clone(&supply), began));
    }
    let mut retried = 0;
    while let Some(sender) = senders.join_next().await {
        retried += sender??;
    }
    let seconds = began.elapsed().as_secs_f64();
    let per_second = options.count as f64 / seconds;
    println!(
        "{}",
        json!({"accepted": options.count, "retried": retried, "seconds": seconds,
               "per_second": per_second})
    );
    Ok(())
}

/// Sends every n-th webhook. Returns the number of failed attempts.
async fn send(
    connection: u64,
    options: Arc<Options>,
    supply: Arc<Supply>,
    began: Instant,
) -> anyhow::Result<u64> {
    let (mut stream, mut request, mut retried) = (None, Vec::new(), 0);
    for number in (connection..options.count).step_by(options.connections as usize) {
        if let Some(rate) = options.rate {
            let due = began + Duration::from_secs_f64(number as f64 / rate as f64);
            sleep_until(due.into()).await;
        }
        request.clear();
        supply.write(number, &mut request);
        loop {
            match exchange(&mut stream, options.address, &request).await {
                Ok(200) => break,
                Ok(503) | Err(_) => retried += 1,
                Ok(status) => bail!("the receiver answered {status}"),
            }
            stream = None;
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
    Ok(retried)
}

async fn exchange(
    kept: &mut Option<TcpStream>,
    address: SocketAddr,
    request: &[u8],
) -> std::io::Result<u16> {
    let stream = match kept {
        Some(stream) => stream,
        None => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            kept.insert(stream)
        }
    };
    stream.write_all(request).await?;
    let (mut answer, malformed) = (Vec::with_capacity(256), std::io::ErrorKind::InvalidData);
    loop {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        // A 200 has no body. After any other answer the connection is closed.
        if answer.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            let status = answer.get(9..12).and_then(|digits| str::from_utf8(digits).ok());
            return status.and_then(|status| status.parse().ok()).ok_or(malformed.into());
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(malformed.into());
        }
    }
}
