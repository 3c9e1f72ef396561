package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/testpeers"
	"posthaste/internal/testproc"
)

// What reads Postfix's showq socket reads ours: Postfix's own postqueue, and Prometheus's exporter.
func TestShowq(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	s := newSystem(t, options{main: fmt.Sprintf("relayhost = [127.0.0.1]:%d\n", port)})
	ids := s.deferred("one", "two")
	s.mustTool("postsuper", "-h", ids[0])

	conn, err := net.Dial("unix", s.path("spool/public/showq"))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	var said strings.Builder
	if _, err := io.Copy(&said, conn); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for _, want := range []string{"protocol\x00mail_queue_list_protocol\x00\x00queue_name\x00", "queue_name\x00hold\x00queue_id\x00" + ids[0] + "\x00time\x00",
		"forced_expire\x000\x00sender\x00a@from.test\x00recipient\x00b@to.test\x00reason\x00connect to 127.0.0.1[127.0.0.1]:" + fmt.Sprint(port) + ": Connection refused\x00recipient\x00c@to.test\x00",
		"Connection refused\x00\x00\x00"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q is not in %q", want, said.String())
		}
	}

	t.Run("postqueue", func(t *testing.T) {
		original := testpeers.Postfix(t, "postqueue")
		if os.Getuid() != 0 {
			t.Skip("SKIPPED: the original is tried as root")
		}
		dir := t.TempDir()
		text := "compatibility_level = 3.6\nqueue_directory = " + s.path("spool") + "\n"
		for name, text := range map[string]string{"main.cf": text, "master.cf": ""} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, option := range []string{"-j", "-p"} {
			out, err := exec.Command(original, "-c", dir, option).CombinedOutput()
			// The original's list has columns of other widths, and its JSON fewer members.
			words := func(text string) string {
				if option == "-j" {
					return members(t, text)
				}
				_, text, _ = strings.Cut(text, "\n")
				return strings.Join(strings.Fields(text), " ")
			}
			if want := s.mustTool("postqueue", option); err != nil || words(string(out)) != words(want) {
				t.Errorf("%s: the original (%v) prints\n%s\nours\n%s", option, err, out, want)
			}
		}
	})
	t.Run("exporter", func(t *testing.T) {
		program := unpackedFile(t, "prometheus-postfix-exporter", "usr/bin/prometheus-postfix-exporter")
		address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		cmd := exec.Command(program, "--web.listen-address="+address, "--postfix.logfile_path="+s.path("mail.log"), "--postfix.showq_path="+s.path("spool/public/showq"))
		testproc.Start(t, cmd, t.TempDir())
		var text string
		s.eventually("the exporter answers", func() bool {
			var err error
			text, err = scrape(address, "")
			return err == nil
		})
		for _, want := range []string{`postfix_showq_message_size_bytes_count{queue="deferred"} 1`, `postfix_showq_message_size_bytes_count{queue="hold"} 1`,
			`postfix_showq_message_age_seconds_count{queue="hold"} 1`, `postfix_up{path="` + s.path("spool/public/showq") + `"} 1`} {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("%s is missing in\n%s", want, text)
			}
		}
	})
}

// members are those of a JSON listing that Postfix's has, one message a line.
func members(t *testing.T, text string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(text) {
		var message struct {
			Queue      string `json:"queue_name"`
			ID         string `json:"queue_id"`
			Arrival    int64  `json:"arrival_time"`
			Size       int64  `json:"message_size"`
			Expire     bool   `json:"forced_expire"`
			Sender     string
			Recipients []struct {
				Address string
				Reason  string `json:"delay_reason"`
			}
		}
		if err := json.Unmarshal([]byte(line), &message); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		fmt.Fprintf(&b, "%+v\n", message)
	}
	return b.String()
}
