package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// olderCommit is the version that a cluster is brought up to date from: it makes and knows fewer tables in the database than the
// present one, and reads a dead node's mail as a whole. It knows nothing of orders for nodes that are down, nor of nodes' versions.
const olderCommit = "7835d7951c7539f1582938dc1a8028d12520dc88"

// older builds the programs of that commit, once, and returns their directory; "" with the reason when there is no history here.
var older = sync.OnceValues(func() (dir, why string) {
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil || exec.Command("git", "cat-file", "-e", olderCommit+"^{commit}").Run() != nil {
		return "", "the history of the source is not here"
	}
	dir = filepath.Join(binDir, "older")
	source := filepath.Join(dir, "source")
	if err := os.MkdirAll(source, 0o755); err != nil {
		return "", err.Error()
	}
	archive := exec.Command("sh", "-c", `git archive "$1" | tar x -C "$2"`, "sh", olderCommit, source)
	archive.Dir = strings.TrimSpace(string(root))
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-w", "-o", dir+"/", "./cmd/posthaste", "./cmd/posthaste-pg")
	build.Dir = source
	for _, cmd := range []*exec.Cmd{archive, build} {
		if out, err := cmd.CombinedOutput(); err != nil {
			panic(fmt.Sprintf("%v: %v\n%s", cmd.Args, err, out))
		}
	}
	os.RemoveAll(source)
	return dir, ""
})

// A rolling is a node of a cluster that is brought to another version and back.
type rolling struct {
	*system
	c    *cluster
	name string
	bin  string // the directory of its programs
}

// use has the node use the programs in a directory from its next start on.
func (n *rolling) use(bin string) {
	n.bin = bin
	main := strings.ReplaceAll(n.c.main, "{bin}", bin) + "command_directory = " + bin + "\ncluster_node_name = " + n.name + "\n"
	n.configure(main, "")
}

// startNode starts the node with its programs.
func (n *rolling) startNode() {
	n.t.Helper()
	n.cmd = exec.Command(filepath.Join(n.bin, "posthaste"), "-c", n.path("etc"), "start-fg")
	n.cmd.Stdout, n.cmd.Stderr = &n.out, &n.out
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	n.launch()
}

// must runs one of the node's own commands, which has to succeed.
func (n *rolling) must(args ...string) string {
	n.t.Helper()
	out, err := exec.Command(filepath.Join(n.bin, "posthaste"), append([]string{"-c", n.path("etc")}, args...)...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// to drains the node, stops it, and starts it with other programs. It takes mail in the end.
func (n *rolling) to(bin string) {
	n.t.Helper()
	n.must("cluster", "drain")
	n.waitDrained()
	n.must("stop")
	<-n.done
	n.use(bin)
	n.startNode()
	n.must("cluster", "undrain")
	n.eventually("node "+n.name+" has a part of the queue", func() bool {
		return strings.Contains(n.must("cluster", "status"), ": "+n.name+", for")
	})
	n.eventually("node "+n.name+" takes mail", func() bool {
		return n.send("a@from.test", []string{"b@to.test"}, "Subject: after "+filepath.Base(bin)+"\n\nx\n") == nil
	})
}

// waitDrained waits until the node has nothing of the queue.
func (n *rolling) waitDrained() {
	n.t.Helper()
	n.eventually("node "+n.name+" has handed over all", func() bool {
		return !strings.Contains(n.must("cluster", "status"), ": "+n.name+", for")
	})
}

// A cluster whose tables an older version has made is brought up to date under load, one node after the other, and back: nothing that
// was acknowledged is lost, nothing arrives twice, and nothing is in doubt. Both versions look at the same queue meanwhile.
func TestClusterRoll(t *testing.T) {
	t.Parallel()
	bin, why := older()
	if bin == "" {
		t.Skip("SKIPPED, NOT PROVED HERE: " + why)
	}
	next := newSink(t, nil)
	c := clusterOf(t, next, 4, bin)
	c.server.Load("DO $$ BEGIN IF to_regclass('posthaste.node_order') IS NOT NULL THEN RAISE EXCEPTION 'the older version knows a table that is newer'; END IF; END $$;")
	var nodes []*rolling
	for _, name := range []string{"a", "b"} {
		n := &rolling{system: newSystem(t, options{unstarted: true}), c: c, name: name}
		n.write("password", "secret\n")
		c.audits(n.system)
		n.use(bin)
		n.startNode()
		nodes = append(nodes, n)
	}
	c.shared(nodes[0].system, "a", "b")
	var loads []*load
	for _, n := range nodes {
		loads = append(loads, startLoad(n.system, 2))
	}
	for _, to := range []string{binDir, bin} {
		for i, n := range nodes {
			loads[i].waitAccepted(30)
			n.to(to)
			if to == binDir { // it has made the tables that were missing
				c.server.Load("SELECT FROM posthaste.node_order, posthaste.node_version LIMIT 0;")
			}
			for k := range loads {
				loads[k].waitAccepted(10) // with both versions at work
			}
		}
	}
	for i, l := range loads {
		l.end()
		t.Logf("node %s: %d accepted, %d refused", nodes[i].name, l.count.Load(), l.refused.Load())
	}
	for i, l := range loads {
		nodes[i].allArrived(next, l)
	}
	repeatedWithin(t, next, map[string]bool{})
	if list := doubtfulIn(t, nodes[0].system); len(list) > 0 {
		t.Errorf("in doubt, after stops in order: %v", list)
	}
}
