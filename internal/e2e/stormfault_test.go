package e2e

import (
	"encoding/binary"
	"os"
	"syscall"
	"time"

	"posthaste/internal/testwait"
)

// stormFaults are the faults of a storm by name. Each ends with everything running again, though not yet calm.
var stormFaults = map[string]func(*clusterStorm){
	"kill":      (*clusterStorm).killNode,
	"killall":   (*clusterStorm).killNodes,
	"stop":      (*clusterStorm).stopNode,
	"stop-idle": (*clusterStorm).stopIdle,
	"cleanup":   (*clusterStorm).stopCleanup,
	"cut-out":   func(s *clusterStorm) { s.cutNode(true, false) },
	"cut-in":    func(s *clusterStorm) { s.cutNode(false, true) },
	"cut":       func(s *clusterStorm) { s.cutNode(true, true) },
	"primary":   (*clusterStorm).killPrimary,
	"standby":   (*clusterStorm).killStandby,
	"alone":     (*clusterStorm).isolatePrimary,
	"disk":      (*clusterStorm).fillDisk,
	"clock":     (*clusterStorm).setClock,
	"slow":      (*clusterStorm).slowCommits,
	"roll":      (*clusterStorm).roll,
	"databases": (*clusterStorm).killDatabases,
}

// victim is a node of the seed's.
func (s *clusterStorm) victim() *stormNode {
	n := s.nodes[s.rng.IntN(len(s.nodes))]
	s.t.Logf("    node %s", n.name)
	return n
}

// between waits for a time between the two.
func (s *clusterStorm) between(from, to time.Duration) {
	time.Sleep(from + time.Duration(s.rng.Int64N(int64(to-from))))
}

// killNode has all processes of a node die at once, and starts it when others have what was its, or before.
func (s *clusterStorm) killNode() {
	n := s.victim()
	n.killAll()
	s.between(time.Second, 9*time.Second)
	n.startNode()
}

// killNodes is that of all nodes.
func (s *clusterStorm) killNodes() {
	for _, n := range s.nodes {
		syscall.Kill(n.cmd.Process.Pid, syscall.SIGKILL)
	}
	for _, n := range s.nodes {
		n.killAll()
	}
	s.between(0, 4*time.Second)
	for _, n := range s.nodes {
		n.startNode()
	}
}

// still has processes of a node stand still, and returns what has them go on. What it has under way is not counted meanwhile.
func (s *clusterStorm) still(n *stormNode) (goOn func()) {
	pids := n.processes()
	signal(pids, syscall.SIGSTOP)
	for _, h := range s.hops {
		h.forget(n.name, false)
	}
	return func() {
		signal(pids, syscall.SIGCONT)
		time.Sleep(time.Second) // those who had leave begin
		for _, h := range s.hops {
			h.forget(n.name, true)
		}
	}
}

// stopNode has a node stand still for longer than a lease lasts.
func (s *clusterStorm) stopNode() {
	goOn := s.still(s.victim())
	s.between(5*time.Second, 12*time.Second)
	goOn()
}

// stopIdle is the same while the node has no transaction under way, so that whoever takes over does not have its sessions ended. Only the
// epoch tells it afterwards that it is the owner no more.
func (s *clusterStorm) stopIdle() {
	n := s.victim()
	s.pause.Lock()
	idle := func() bool {
		out, err := s.db.primary().sql("mail", "SELECT count(*) FROM pg_stat_activity WHERE usename = 'mail' AND client_addr = '"+n.host.ip+"' AND state <> 'idle'")
		return err == nil && out == "0"
	}
	testwait.Until(s.t, "node "+n.name+" has nothing under way", idle)
	goOn := s.still(n)
	s.pause.Unlock()
	s.between(6*time.Second, 12*time.Second)
	goOn()
}

// stopCleanup has the process stand still that has the node's leases, in the middle of a commit, until others have taken all over. The
// agents go on: who of them makes a delivery then has got leave for it too late.
func (s *clusterStorm) stopCleanup() {
	n := s.victim()
	standby := s.db.standby(s.db.primary())
	end := standby.slow(500 * time.Millisecond)
	defer end()
	s.between(2*time.Second, 4*time.Second)
	pids := n.processes("cleanup")
	signal(pids, syscall.SIGSTOP)
	has := func() bool {
		d := s.db.primary()
		if d == nil {
			return true
		}
		out, err := d.sql("mail", "SELECT count(*) FROM posthaste.shard WHERE node = '"+n.name+"'")
		return err != nil || out != "0"
	}
	testwait.Until(s.t, "others have taken over what node "+n.name+" has", func() bool { return !has() || pauseFalse() })
	end()
	for _, h := range s.hops {
		h.watch(n.name)
	}
	signal(pids, syscall.SIGCONT)
	var late []time.Time
	for limit := time.Now().Add(3 * time.Second); time.Now().Before(limit); time.Sleep(50 * time.Millisecond) {
		seen := []time.Time{}
		for _, h := range s.hops {
			seen = append(seen, h.seen()...)
		}
		if has() {
			break // and what was seen last may be in order
		}
		late = seen
	}
	for _, h := range s.hops {
		h.watch("")
	}
	if len(late) > 0 {
		s.led.complain("node %s has made %d deliveries without having a part of the queue: %v", n.name, len(late), late)
	}
}

// watch has the hop note when a node that has no part of the queue makes deliveries.
func (h *stormHop) watch(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watched, h.strange = node, nil
}

func (h *stormHop) seen() []time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]time.Time(nil), h.strange...)
}

// cutNode has nothing of what a node sends reach the database, or nothing of what that answers reach the node, or both.
func (s *clusterStorm) cutNode(out, in bool) {
	n := s.victim()
	if out {
		n.host.cut(s.db.dbs[0].ip, s.db.dbs[1].ip)
	}
	if in {
		for _, d := range s.db.dbs {
			d.cut(n.host.ip)
		}
	}
	s.between(2*time.Second, 15*time.Second)
	if out {
		n.host.mend(s.db.dbs[0].ip, s.db.dbs[1].ip)
	}
	if in {
		for _, d := range s.db.dbs {
			d.mend(n.host.ip)
		}
	}
}

// killPrimary has the machine of the primary server die, and come back when the standby was promoted and mail is taken.
func (s *clusterStorm) killPrimary() {
	old := s.db.primary()
	old.kill()
	s.promoted(old)
	old.boot()
}

// promoted waits until the other server is the primary. Without a standby no commit counts, and so no mail is taken.
func (s *clusterStorm) promoted(old *dbHost) {
	s.t.Helper()
	testwait.Until(s.t, "the standby is promoted", func() bool { d := s.db.primary(); return d != nil && d != old || pauseFalse() })
}

// killStandby has the standby's machine die, and come back. Commits wait meanwhile.
func (s *clusterStorm) killStandby() {
	d := s.db.standby(s.db.primary())
	d.kill()
	s.between(time.Second, 12*time.Second)
	d.boot()
}

// killDatabases has both servers' machines die at once, as when the power of a site is cut.
func (s *clusterStorm) killDatabases() {
	for _, d := range s.db.dbs {
		d.kill()
	}
	s.between(0, 12*time.Second)
	for _, d := range s.db.dbs {
		d.boot()
	}
}

// isolatePrimary cuts the primary server from etcd, though not from the nodes, until the other one was promoted.
func (s *clusterStorm) isolatePrimary() {
	old := s.db.primary()
	old.cut(lanPrefix + "1")
	testwait.Until(s.t, "the standby is promoted", func() bool {
		out, err := s.db.standby(old).sql("postgres", "SELECT pg_is_in_recovery()")
		return err == nil && out == "f" || pauseFalse()
	})
	s.between(0, 5*time.Second)
	old.mend(lanPrefix + "1")
}

// fillDisk leaves no room on the disk of one of the servers, for a while.
func (s *clusterStorm) fillDisk() {
	d := s.db.dbs[s.rng.IntN(2)]
	s.t.Logf("    %s", d.name)
	free := d.fill()
	s.between(4*time.Second, 15*time.Second)
	free()
}

// slowCommits has each commit take half a second.
func (s *clusterStorm) slowCommits() {
	end := s.db.standby(s.db.primary()).slow(500 * time.Millisecond)
	s.between(5*time.Second, 12*time.Second)
	end()
}

// roll has one node after the other drained, stopped, and started with programs of another version, under load.
func (s *clusterStorm) roll() {
	for _, n := range s.nodes {
		s.toolOf(n, "cluster", "drain")
		n.stop()
		if n.bin == s.bins[0] {
			n.use(s.bins[1])
		} else {
			n.use(s.bins[0])
		}
		n.startNode()
		s.toolOf(n, "cluster", "undrain")
		testwait.Until(s.t, "node "+n.name+" takes mail", func() bool { return s.takesMail(n) || pauseFalse() })
	}
}

// setClock sets a node's clock forth or back by up to an hour, though not to another day, and then right again.
func (s *clusterStorm) setClock() {
	n := s.victim()
	by := time.Duration(s.rng.Int64N(int64(2*time.Hour))) - time.Hour
	if now := time.Now().UTC(); now.Add(by).Day() != now.Day() {
		by = -by
	}
	s.t.Logf("    by %v", by.Round(time.Second))
	set := func(by time.Duration) {
		// It is mapped into the node's processes: the file must stay the same one.
		f, err := os.OpenFile(n.path("clock"), os.O_WRONLY, 0)
		if err != nil {
			s.t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(binary.NativeEndian.AppendUint64(nil, uint64(int64(by/time.Second)))); err != nil {
			s.t.Fatal(err)
		}
	}
	set(by)
	s.between(3*time.Second, 15*time.Second)
	set(0)
}
