#!/usr/bin/env python3
"""Relay mail through nodes that share a queue in PostgreSQL, and through Postfix, in turn, on this machine.

    cluster.py --bench DIR --bin DIR [--nodes 1,2,3] [--rounds 3] [--workload relay]

--bench is the folder with compare.py, whose workloads and settings these are; --bin has posthaste and posthaste-pg.
A primary and a synchronous standby run on the same disk and processors as everything else, with fsync. Each node gets
an equal part of the messages, from a load generator and to a next hop of its own. Rounds alternate; medians are
printed, and their ratios to Postfix, whose queue is on the local disk. Nothing leaves loopback.
"""
import argparse, json, os, shutil, statistics, subprocess, sys, time

PG = "/usr/lib/postgresql/15/bin/"


class Database:
    """A primary, and a standby that has each commit before it counts."""

    def __init__(self, base, port):
        self.base, self.port = os.path.join(base, "pg"), port
        shutil.rmtree(self.base, ignore_errors=True)
        os.makedirs(self.base)
        shutil.chown(self.base, "postgres", "postgres")
        self.primary, self.standby = self.base + "/primary", self.base + "/standby"
        self.sh(PG + f"initdb -A trust -U postgres -D {self.primary}")
        with open(self.primary + "/postgresql.conf", "a") as f:
            f.write(f"listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\nmax_connections = 200\n")
        self.sh(PG + f"pg_ctl -w -D {self.primary} -l {self.base}/primary.log start")
        self.sql("CREATE DATABASE mail")
        self.sh(PG + f"pg_basebackup -R -X stream -d 'host=127.0.0.1 port={port} user=postgres application_name=s1' -D {self.standby}")
        with open(self.standby + "/postgresql.conf", "a") as f:
            f.write(f"port = {port + 1}\n")
        self.sh(PG + f"pg_ctl -w -D {self.standby} -l {self.base}/standby.log start")
        self.sql("ALTER SYSTEM SET synchronous_standby_names = 's1'")
        self.sql("SELECT pg_reload_conf()")
        while "sync" not in self.sql("SELECT sync_state FROM pg_stat_replication"):
            time.sleep(0.2)

    def sh(self, command):
        subprocess.run(["runuser", "-u", "postgres", "--", "sh", "-c", command], check=True, stdout=subprocess.DEVNULL, cwd="/")

    def sql(self, text):
        return subprocess.run(["psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-Atc", text, "mail" if "CREATE DATABASE" not in text else "postgres"],
                              check=True, capture_output=True, text=True).stdout

    def cpu(self, d):
        """Seconds of processor time that the server in directory d has taken, its present and former children included."""
        with open(d + "/postmaster.pid") as f:
            parent = int(f.readline())
        ticks = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    fields = f.read().rsplit(")", 1)[1].split()
            except OSError:
                continue  # ended meanwhile
            if int(pid) == parent:
                ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
            elif int(fields[1]) == parent:
                ticks += sum(map(int, fields[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self):
        for d in (self.standby, self.primary):
            self.sh(PG + f"pg_ctl -w -m fast -D {d} stop")


def run_all(nodes, bench, args):
    """Loads all nodes at once. The rate is that of all messages until the last has been delivered."""
    procs = [subprocess.Popen([bench, "-target", f"127.0.0.1:{m.port}", "-sink", f"127.0.0.1:{m.sink}", "-pid", str(m.pid),
                               "-json", "-timeout", "300s", *args], stdout=subprocess.PIPE, text=True) for m in nodes]
    outs = [json.loads(p.communicate()[0]) for p in procs]
    for o in outs:
        if o["errors"] or o["duplicates"]:
            print("errors, duplicates:", o["errors"], o["duplicates"], file=sys.stderr)
    return {"rate": sum(o["deliver_per_s"] for o in outs), "p50": statistics.median(o["deliver_ms_p50"] for o in outs),
            "cpu": statistics.mean(o["mta_cpu_us_per_msg"] for o in outs)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bench", required=True)
    ap.add_argument("--bin", required=True)
    ap.add_argument("--nodes", default="1,2,3")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--workload", default="relay")
    ap.add_argument("--dir", default="/var/tmp/mtacluster")
    a = ap.parse_args()
    sys.path.insert(0, a.bench)
    import compare
    os.makedirs(a.dir, exist_ok=True)
    os.chmod(a.dir, 0o755)
    bench = os.path.join(a.dir, "mtabench")
    subprocess.run(["go", "build", "-o", bench, "."], cwd=os.path.join(a.bench, "mtabench"), check=True)
    args, what = compare.WORKLOADS[a.workload]
    total, sessions = int(args[args.index("-messages") + 1]), int(args[args.index("-sessions") + 1])
    counts = [int(n) for n in a.nodes.split(",")]
    db = Database(a.dir, 54401)
    try:
        nodes = []
        for i in range(max(counts)):
            m = compare.MTA(f"node{i + 1}", os.path.join(a.bin, "posthaste"), a.dir, 10125 + 10 * i, 10126 + 10 * i)
            with open(m.dir + "/etc/main.cf", "a") as f:
                f.write(f"daemon_directory = {a.bin}\nspool_type = postgresql\ncluster_node_name = node{i + 1}\n"
                        f"spool_postgresql_url = postgres://postgres@127.0.0.1:54401/mail?sslmode=disable\n")
            nodes.append(m)
        subprocess.run(nodes[0].command("cluster") + ["init", "-n", str(max(counts))], check=True, stdout=subprocess.DEVNULL)
        postfix = compare.MTA("postfix", "postfix", a.dir, 10235, 10236)
        runs = {"postfix": []} | {n: [] for n in counts}
        for _ in range(a.rounds):
            for n in runs:
                used = [postfix] if n == "postfix" else nodes[:n]
                for m in used:
                    m.start()
                try:
                    if n != "postfix":
                        shared(db, n)
                    few = [*args]
                    few[few.index("-messages") + 1], few[few.index("-sessions") + 1] = str(total // len(used)), str(max(1, sessions // len(used)))
                    run_all(used, bench, ["-messages", "200", "-sessions", "5"])  # warm-up
                    before = [db.cpu(d) for d in (db.primary, db.standby)]
                    runs[n].append(run_all(used, bench, few))
                    for name, d, b in zip(("primary", "standby"), (db.primary, db.standby), before):
                        runs[n][-1][name] = (db.cpu(d) - b) * 1e6 / total
                finally:
                    for m in used:
                        m.stop()
                print(n, runs[n][-1], flush=True)
        base = statistics.median(r["rate"] for r in runs["postfix"])
        print(f"\n{a.workload}: {what}; medians of {a.rounds} rounds")
        for n, list in runs.items():
            rate, p50, cpu, primary, standby = (statistics.median(r[f] for r in list) for f in ("rate", "p50", "cpu", "primary", "standby"))
            print(f"{n!s:>8} {rate:9.0f} messages/s {rate / base:6.2f} of Postfix {p50:8.1f} ms to deliver, median; processor time for a message: "
                  f"{cpu:.0f} us in the mail systems, {primary:.0f} in the primary, {standby:.0f} in the standby")
    finally:
        db.stop()


def shared(db, n):
    """Waits until each of n nodes has a share of the queue."""
    for _ in range(600):
        if int(db.sql("SELECT count(DISTINCT node) FROM posthaste.shard JOIN posthaste.lease ON shard = id WHERE until > clock_timestamp()")) == n:
            time.sleep(0.5)
            return
        time.sleep(0.2)
    sys.exit(f"{n} nodes have not shared the queue")


if __name__ == "__main__":
    main()
