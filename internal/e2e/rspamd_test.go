package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"posthaste/internal/testproc"
)

// rspamdConf is rspamd as a filter and nothing else: no DNS that answers, no
// other workers, one rule. {port} is the filter's, {dir} that of its files.
const rspamdConf = `options {
  pidfile = "{dir}/rspamd.pid"; tempdir = "{dir}"; hs_cache_dir = "{dir}"; cache_file = "{dir}/cache";
  control_socket = "{dir}/control"; url_tld = "{dir}/tld"; dynamic_conf = "{dir}/dynamic"; history_file = "";
  filters = ""; disable_hyperscan = true;
  dns { nameserver = ["127.0.0.1:1"]; timeout = 0.1s; retransmits = 1; }
}
logging { type = "console"; level = "warning"; }
actions { reject = 15; add_header = 6; greylist = 1000; }
modules { path = "/usr/share/rspamd/plugins/milter_headers.lua"; }
milter_headers { use = ["x-spamd-result", "spam-header"]; skip_local = false; skip_authenticated = false; }
lua = "{dir}/rule.lua";
worker "rspamd_proxy" {
  bind_socket = "127.0.0.1:{port}"; milter = yes; timeout = 20s; count = 1;
  upstream "local" { default = yes; self_scan = yes; hosts = "localhost"; }
}
`

const rspamdRule = `rspamd_config:register_symbol({ name = "SALE", score = 7,
  callback = function(task) local s = task:get_subject() return s ~= nil and s:find("sale") ~= nil end })
`

// Rspamd, as many sites have it, tags what it suspects and refuses what it is
// sure of.
func TestRspamd(t *testing.T) {
	t.Parallel()
	program := need(t, "rspamd")
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true})
	if err := os.Mkdir(s.path("rspamd"), 0o755); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	s.write("rspamd/tld", "com\ntest\n")
	s.write("rspamd/rule.lua", rspamdRule)
	s.write("rspamd/rspamd.conf", strings.NewReplacer("{port}", fmt.Sprint(port), "{dir}", s.path("rspamd")).Replace(rspamdConf))
	args := []string{"-f", "-i", "-c", s.path("rspamd", "rspamd.conf")}
	if os.Getuid() == 0 {
		args = append(args, "-u", "root", "-g", "root")
	}
	cmd := exec.Command(program, args...)
	var out testproc.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(testproc.Watch(t, cmd, ""))
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt) // it stops its own processes
		cmd.Wait()
		if t.Failed() {
			t.Logf("rspamd says:\n%s", out.String())
		}
	})
	s.configure(next.relayhost()+fmt.Sprintf("smtpd_milters = inet:127.0.0.1:%d\nnon_smtpd_milters = $smtpd_milters\n", port), "")
	s.start()
	s.eventually("rspamd listens", func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
		}
		return err == nil
	})

	const head = "From: <a@from.test>\nTo: <b@to.test>\nDate: Sat, 21 Nov 2026 08:00:00 +0000\nMessage-Id: <1@from.test>\nSubject: "
	s.mustSend("a@from.test", []string{"b@to.test"}, head+"plain\n\nbody\n")
	s.mustSend("a@from.test", []string{"b@to.test"}, head+"big sale\nX-Spamd-Result: no spam, really\n\n"+strings.Repeat(strings.Repeat("x", 70)+"\n", 4000))
	err := s.send("a@from.test", []string{"b@to.test"}, head+"certain\n\nXJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X\n")
	if err == nil || !strings.Contains(err.Error(), "554 ") || !strings.Contains(err.Error(), "5.7.1 Gtube pattern") {
		t.Errorf("what is certainly spam: %v", err)
	}
	s.waitLog(`postfix/cleanup\[\d+\]: \w+: milter-reject: END-OF-MESSAGE from \S+\[127\.0\.0\.1\]: 5\.7\.1 Gtube pattern; from=<a@from\.test> to=<b@to\.test> proto=ESMTP helo=<client\.test>$`)
	if out, status := s.tool([]byte(head+"local sale\n\nbody\n"), "sendmail", "-f", "a@from.test", "b@to.test"); status != 0 {
		t.Fatal(out)
	}
	s.waitLogN(`postfix/qmgr\[\d+\]: \w+: removed`, 3)
	seen := 0
	for _, m := range next.received() {
		head, _, _ := strings.Cut(m.data, "\n\n")
		suspect := strings.Contains(head, " sale")
		if suspect != strings.Contains(head, "SALE(7.00)") || suspect != strings.Contains(head, "\nX-Spam: Yes") ||
			strings.Count(head, "X-Spamd-Result: ") != 1 || strings.Contains(head, "really") {
			t.Errorf("tags:\n%s", head)
		}
		seen++
	}
	if seen != 3 {
		t.Errorf("%d messages arrived, want 3", seen)
	}
	if strings.Contains(s.log(), "warning: milter") {
		t.Error("the filter and we do not understand each other")
	}
}
