package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMultiInstance: postmulti makes a second mail system beside the first,
// runs both, and removes it.
func TestMultiInstance(t *testing.T) {
	t.Parallel()
	s := newSystem(t, options{unstarted: true})
	second := s.path("posthaste-out")
	t.Cleanup(func() {
		s.tool(nil, "-c", second, "stop")
		s.tool(nil, "stop")
	})
	multi := func(want int, args ...string) string {
		t.Helper()
		out, status := s.tool(nil, append([]string{"postmulti"}, args...)...)
		if status != want {
			t.Fatalf("postmulti %q: status %d: %s", args, status, out)
		}
		return out
	}
	listed := func(want ...string) {
		t.Helper()
		out := regexp.MustCompile(` +`).ReplaceAllString(multi(0, "-l"), " ")
		if out != strings.Join(want, "\n")+"\n" {
			t.Errorf("instances:\n%s\nexpected\n%s", out, strings.Join(want, "\n"))
		}
	}
	setting := func(dir, name string) string {
		out, _ := s.tool(nil, "-c", dir, "postconf", "-h", name)
		return strings.TrimSpace(out)
	}
	listed("- - y " + s.path("etc"))
	multi(0, "-e", "init")
	if got := setting(s.path("etc"), "multi_instance_wrapper"); got != "${command_directory}/postmulti -p --" {
		t.Errorf("wrapper %s", got)
	}
	places := []string{"queue_directory=" + s.path("out-queue"), "data_directory=" + s.path("out-data")}
	if out := multi(1, append([]string{"-I", "out", "-e", "create"}, places...)...); !strings.Contains(out, "begins with") {
		t.Errorf("a name without prefix: %s", out)
	}
	if out := multi(1, "-I", "posthaste-out", "-e", "create", "queue_directory="+s.path("spool"), places[1]); !strings.Contains(out, "queue_directory") {
		t.Errorf("another one's queue: %s", out)
	}
	multi(0, append([]string{"-I", "posthaste-out", "-G", "out", "-e", "create"}, places...)...)
	listed("- - y "+s.path("etc"), "posthaste-out out n "+second)
	if got := setting(second, "master_service_disable"); got != "inet" {
		t.Errorf("a new instance listens: master_service_disable = %s", got)
	}
	if out, status := s.tool([]byte("Subject: x\n\nx\n"), "-c", second, "sendmail", "-f", "a@from.test", "b@to.test"); status != 75 || !strings.Contains(out, "authorized_submit_users") {
		t.Errorf("a new instance takes mail from root: status %d: %s", status, out)
	}
	if out, status := s.tool(nil, "-c", second, "postconf", "-e", "authorized_submit_users=static:anyone", "maillog_file="+s.path("out.log"), "maillog_file_prefixes="+s.dir,
		"mydestination=", "myhostname=out.test", "default_transport=discard:", "alias_maps=", "alias_database="); status != 0 {
		t.Fatal(out)
	}

	// What is not enabled is checked and not started.
	multi(0, "-p", "start")
	if _, status := s.tool(nil, "status"); status != 0 {
		t.Error("the primary instance does not run")
	}
	if _, status := s.tool(nil, "-c", second, "status"); status == 0 {
		t.Error("an instance that is not enabled runs")
	}
	multi(0, "-i", "posthaste-out", "-e", "enable")
	multi(0, "-g", "out", "-p", "start")
	if _, status := s.tool(nil, "-c", second, "status"); status != 0 {
		t.Error("the second instance does not run")
	}
	names := multi(0, "-R", "-x", "sh", "-c", "echo $multi_instance_name:$MAIL_CONFIG:$queue_directory")
	if want := "posthaste-out:" + second + ":" + s.path("out-queue") + "\n:" + s.path("etc") + ":" + s.path("spool") + "\n"; names != want {
		t.Errorf("environment %q, expected %q", names, want)
	}
	if out, status := s.tool([]byte("Subject: x\n\nx\n"), "-c", second, "sendmail", "-f", "a@from.test", "b@to.test"); status != 0 {
		t.Fatalf("sendmail: %s", out)
	}
	delivered := regexp.MustCompile(`posthaste-out/discard\[\d+\]: \S+: to=<b@to.test>, .*status=sent`)
	s.eventually("the second instance delivers", func() bool {
		b, _ := os.ReadFile(s.path("out.log"))
		return delivered.Match(b)
	})

	if out := multi(1, "-i", "posthaste-out", "-e", "destroy"); !strings.Contains(out, "disable it first") {
		t.Errorf("destroyed while enabled: %s", out)
	}
	multi(0, "-i", "posthaste-out", "-e", "disable")
	if out := multi(1, "-i", "posthaste-out", "-e", "destroy"); !strings.Contains(out, "stop it first") {
		t.Errorf("destroyed while running: %s", out)
	}
	multi(0, "-i", "posthaste-out", "-e", "enable")
	multi(0, "-p", "stop")
	for _, dir := range []string{s.path("etc"), second} {
		if _, status := s.tool(nil, "-c", dir, "status"); status == 0 {
			t.Errorf("%s runs after stop", dir)
		}
	}
	multi(0, "-i", "posthaste-out", "-I", "posthaste-new", "-G", "-", "-e", "assign")
	listed("- - y "+s.path("etc"), "posthaste-new - y "+second)
	multi(0, "-i", "posthaste-new", "-e", "deport")
	listed("- - y " + s.path("etc"))
	multi(0, "-e", "import", "config_directory="+second)
	multi(0, "-i", second, "-e", "disable")
	drop := filepath.Join(s.path("out-queue"), "maildrop", "mail")
	if err := os.WriteFile(drop, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := multi(1, "-i", second, "-e", "destroy"); !strings.Contains(out, "there is mail") {
		t.Errorf("destroyed with mail: %s", out)
	}
	if err := os.Remove(drop); err != nil {
		t.Fatal(err)
	}
	if out := multi(0, "-i", second, "-e", "destroy"); out != "" {
		t.Errorf("destroy: %s", out)
	}
	listed("- - y " + s.path("etc"))
	for _, dir := range []string{second, s.path("out-queue"), s.path("out-data")} {
		if _, err := os.Stat(dir); err == nil {
			left, _ := os.ReadDir(dir)
			t.Errorf("%s is still there, with %v", dir, left)
		}
	}
}
