//! A PostgreSQL cluster of a test's own, to be crashed without harm to others.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::database::name;

/// A running cluster; stopped and deleted when it is dropped.
pub(super) struct Cluster {
    programs: PathBuf,
    folder: PathBuf,
    port: u16,
    root: bool,
}

impl Cluster {
    /// Makes and starts one, from the programs that the shared one runs.
    pub(super) fn start() -> Self {
        let control = std::env::var("OUTRIGGER_TEST_PG_CTL")
            .unwrap_or_else(|_| panic!("OUTRIGGER_TEST_PG_CTL isn't set; `scripts/test` sets it"));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = std::env::temp_dir().join(format!("outrigger-cluster-{}", name()));
        fs::create_dir(&folder).unwrap();
        let id = Command::new("id").arg("-u").output().unwrap();
        let cluster = Self {
            programs: Path::new(&control).parent().unwrap().to_owned(),
            folder,
            port,
            root: id.stdout == b"0\n",
        };
        if cluster.root {
            let owned = Command::new("chown").arg("postgres").arg(&cluster.folder).status();
            assert!(owned.unwrap().success());
        }
        let data = cluster.data();
        cluster.run("initdb", &["-D", &data, "-A", "trust", "-U", "postgres", "--no-sync"]);
        cluster.start_again();
        cluster
    }

    /// Its URL.
    pub(super) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Ends every process of it at once, as a crash would.
    pub(super) fn crash(&self) {
        self.run("pg_ctl", &["-D", &self.data(), "-m", "immediate", "-w", "stop"]);
    }

    /// Starts it, and waits until it has recovered.
    pub(super) fn start_again(&self) {
        let folder = self.folder.display();
        let options = format!(
            "-p {} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=100",
            self.port
        );
        let log = format!("{folder}/server.log");
        self.run(
            "pg_ctl",
            &["-D", &self.data(), "-o", &options, "-l", &log, "-w", "-t", "60", "start"],
        );
    }

    fn data(&self) -> String {
        self.folder.join("data").display().to_string()
    }

    /// The server refuses to run as root.
    fn command(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        let mut command = if self.root {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        // The server that it starts outlives it, and would keep a pipe open.
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let status = self.command(program).args(arguments).status().unwrap();
        assert!(status.success(), "{program} {arguments:?}: {status}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It may be down already.
        let _ = self
            .command("pg_ctl")
            .args(["-D", &self.data(), "-m", "immediate", "-w", "stop"])
            .stderr(Stdio::null())
            .status();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
