//! A private Kafka broker of one process, run by the repository's own `ops/kafka.sh`.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, Producer};

use crate::process::{Process, Recipe};
use crate::until::until;
use crate::{binaries, port};

/// Formatting the storage and starting take some seconds each, and more on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(90);
/// Time limit of one request to the broker.
const ANSWER: Duration = Duration::from_secs(3);

/// The Kafka of one test. Signals and restarts are those of [`Process`].
#[derive(Debug)]
pub struct KafkaServer {
    process: Process,
    address: SocketAddr,
    clients: ClientConfig,
}

/// Differences of a broker from the default.
#[derive(Debug, Default)]
pub struct KafkaOptions<'a> {
    /// Broker settings, one per line; `{port}` and `{controller}` stand for its two ports.
    pub settings: &'a str,
    /// Arguments to format its storage.
    pub format_arguments: &'a str,
    /// Settings that the test's own clients need to connect.
    pub clients: &'a [(&'a str, &'a str)],
}

impl KafkaServer {
    /// Starts a broker in a new directory below `directory`, without waiting.
    pub fn start(directory: &Path, options: &KafkaOptions<'_>) -> Self {
        let (address, controller) = (port::free(), port::free());
        let directory = directory.join("kafka");
        std::fs::create_dir_all(&directory).expect("make a directory");
        let settings = options
            .settings
            .replace("{port}", &address.port().to_string())
            .replace("{controller}", &controller.port().to_string());
        std::fs::write(directory.join("extra.properties"), settings).expect("write settings");
        let recipe = Recipe {
            name: "kafka".to_owned(),
            program: script(),
            arguments: ["run".into(), directory.clone().into(), address.port().to_string().into()]
                .to_vec(),
            environment: [
                ("HOME", std::env::var("HOME").unwrap_or_default()),
                ("SPILLWAY_CACHE", std::env::var("SPILLWAY_CACHE").unwrap_or_default()),
                ("XDG_CACHE_HOME", std::env::var("XDG_CACHE_HOME").unwrap_or_default()),
                ("KAFKA_CONTROLLER_PORT", controller.port().to_string()),
                // A story's broker is young: little of it would be compiled in time to matter.
                ("KAFKA_JVM", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC".to_owned()),
                ("KAFKA_FORMAT_ARGUMENTS", options.format_arguments.to_owned()),
            ]
            .map(|(key, value)| (key.to_owned(), value))
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .collect(),
            directory,
            sockets: Vec::new(),
        };
        let mut clients = ClientConfig::new();
        // A certificate may be for this name.
        clients.set("bootstrap.servers", format!("localhost:{}", address.port()));
        for (key, value) in options.clients {
            clients.set(*key, *value);
        }
        Self { process: recipe.start(), address, clients }
    }

    /// Waits until the broker answers.
    pub async fn ready(&self) {
        let config = self.clients();
        until("kafka answers", READY_WITHIN, async || {
            let config = config.clone();
            let asked = tokio::task::spawn_blocking(move || {
                let client: BaseProducer = config.create().expect("a client");
                client.client().fetch_metadata(None, ANSWER).is_ok_and(|m| !m.brokers().is_empty())
            });
            asked.await.expect("kafka was asked")
        })
        .await;
    }

    /// Address on which the broker listens.
    pub fn url(&self) -> String {
        format!("localhost:{}", self.address.port())
    }

    /// Basic settings of the test's own clients.
    pub fn clients(&self) -> ClientConfig {
        self.clients.clone()
    }

    /// Creates a topic.
    pub async fn topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let admin: AdminClient<DefaultClientContext> = self.clients().create().expect("a client");
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
        let made = admin.create_topics([&topic], &options).await.expect("kafka makes a topic");
        made[0].as_ref().expect("the topic is made");
    }

    /// Sets the settings of a topic; all others are reset.
    pub async fn configure_topic(&self, name: &str, settings: &[(&str, &str)]) {
        let admin: AdminClient<DefaultClientContext> = self.clients().create().expect("a client");
        let mut change = AlterConfig::new(ResourceSpecifier::Topic(name));
        for (key, value) in settings {
            change = change.set(key, value);
        }
        let changed = admin.alter_configs([&change], &AdminOptions::new()).await;
        changed.expect("kafka answers")[0].as_ref().expect("the topic is changed");
    }
}

fn script() -> PathBuf {
    binaries::repository().join("ops/kafka.sh")
}

impl Deref for KafkaServer {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for KafkaServer {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
