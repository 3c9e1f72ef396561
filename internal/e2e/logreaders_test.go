package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"posthaste/internal/testproc"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// unpackedFile is a file of a package that peers.sh only unpacks.
func unpackedFile(t testing.TB, pkg, name string) string {
	t.Helper()
	path := filepath.Join(unpacked, pkg, name)
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("PEERS_REQUIRED") != "" {
			t.Fatalf("%s is not unpacked: run \"make peers\"", pkg)
		}
		t.Skipf("SKIPPED: %s is not unpacked: \"make peers\" does that", pkg)
	}
	return path
}

// Programs that read Postfix's logs find in ours what has happened: each of
// them is given the log of the same day. A log service writes it, which adds
// the host to what it gets.
func TestLogReaders(t *testing.T) {
	t.Parallel()
	var exporter string
	d := newLogDay(t, "maillog_file =\nsyslog_socket = {dir}/devlog\n", func(s *system) {
		const date = len("<22>Jan _2 15:04:05 ")
		logService(t, s, func(d string) string { return d[len("<22>"):date] + "mx " + d[date:] })
		exporter = startExporter(t, s) // it reads what comes after its start
	})
	d.live()
	t.Run("pflogsumm", d.pflogsumm)
	t.Run("logwatch", d.logwatch)
	t.Run("fail2ban", d.fail2ban)
	t.Run("exporter", func(t *testing.T) { d.exporter(t, exporter) })
}

// read runs a reader and returns what it says.
func (d *logDay) read(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "RES_OPTIONS=timeout:1 attempts:1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+filepath.Join(unpacked, "fail2ban/usr/lib/python3/dist-packages"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// counts are the numbers that the pattern finds: its first group is the
// number, its second what there is that many of.
func counts(text, pattern string) map[string]int {
	found := make(map[string]int)
	for _, m := range regexp.MustCompile("(?m)"+pattern).FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1])
		found[m[2]] += n
	}
	return found
}

// same reports the counts that are not as they should be.
func same(t *testing.T, what string, got, want map[string]int) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s: got %v\nwant %v", what, got, want)
	}
}

func (d *logDay) pflogsumm(t *testing.T) {
	out := d.read(t, need(t, "pflogsumm"), "--smtpd-stats", d.path("mail.log"))
	totals, rest, _ := strings.Cut(out, "Per-Hour Traffic")
	got := counts(totals, `^ +(\d+) +([a-z/]+(?: [a-z/]+)*)`)
	// What it calls received is each message that a client began, or that was
	// submitted here: seven, one that was refused, and one that never came.
	// Its bytes are checked below.
	delete(got, "bytes received")
	delete(got, "bytes delivered")
	delete(got, "avg")
	same(t, "totals", got, map[string]int{
		"received": 9, "delivered": 7, "forwarded": 0, "deferred": 1, "bounced": 1, "rejected": 9, "reject warnings": 2, "held": 1, "discarded": 1,
		"senders": 4, "sending hosts/domains": 3, "recipients": 3, "recipient hosts/domains": 2, "connections": d.sessions, "hosts/domains": d.sessions,
	})
	_, reasons, _ := strings.Cut(rest, "message deferral detail")
	reasons, _, _ = strings.Cut(reasons, "\nWarnings\n")
	got = make(map[string]int)
	for _, m := range regexp.MustCompile(`(?m)^ +(\S.*) \(total: (\d+)\)`).FindAllStringSubmatch(reasons, -1) {
		n, _ := strconv.Atoi(m[2])
		got[regexp.MustCompile(`:\d+$`).ReplaceAllString(m[1], "")] += n
	}
	same(t, "reasons", got, map[string]int{
		"smtp": 1, "127.0.0.1[127.0.0.1]": 1, "header": 2,
		"Helo command rejected: need fully-qualified hostname":              1,
		"Recipient address rejected: User unknown in local recipient table": 2,
		"Relay access denied":                                   1,
		"Sender address rejected: Access denied":                1,
		"Sender address rejected: greylisted":                   2,
		"blocked using list.test":                               1,
		"Sender address rejected: need fully-qualified address": 1,
		"Sender address triggers HOLD action":                   1,
		"Sender address triggers DISCARD action":                1,
	})
	// It knows a message's size, sender and client from three lines of three
	// processes, and counts right when these come in order.
	_, senders, _ := strings.Cut(out, "Senders by message count\n")
	senders, _, _ = strings.Cut(senders, "Recipients by message count")
	same(t, "senders", counts(senders, `^ +(\d+) +(\S+@\S+)$`),
		map[string]int{"a@from.test": 2, "bob@mta.test": 1, "cron@local.test": 1, d.user + "@local.test": 1})
	_, bySize, _ := strings.Cut(out, "Recipients by message size\n")
	bySize, _, _ = strings.Cut(bySize, "message deferral detail")
	if got, want := counts(bySize, `^ +(\d+) +(\S+)$`), d.delivered(); !maps.Equal(got, want) {
		t.Errorf("octets delivered: %v, want %v", got, want)
	}
}

// delivered is how much each recipient got, by the queue manager's sizes.
func (d *logDay) delivered() map[string]int {
	size := make(map[string]int)
	for _, m := range regexp.MustCompile(`: (\w+): from=<.*>, size=(\d+),`).FindAllStringSubmatch(d.log(), -1) {
		size[m[1]], _ = strconv.Atoi(m[2])
	}
	total := make(map[string]int)
	for _, m := range regexp.MustCompile(`: (\w+): to=<(\S+)>,.* status=sent`).FindAllStringSubmatch(d.log(), -1) {
		total[m[2]] += size[m[1]]
	}
	return total
}

func (d *logDay) logwatch(t *testing.T) {
	script := unpackedFile(t, "logwatch", "usr/share/logwatch/scripts/services/postfix")
	out := d.read(t, need(t, "perl"), script, "--long_queue_ids", "--detail", "10", d.path("mail.log"))
	summary, rest, _ := strings.Cut(out, "****** Detail")
	got := counts(summary, `^ +(\d+) {3}(\S+(?: \S+)*) `)
	for _, what := range []string{"Total", "Total 5xx Rejects", "Total 4xx Rejects", "Total Warn Rejects", "Bytes accepted", "Bytes sent via SMTP", "Miscellaneous warnings"} {
		delete(got, what)
	}
	same(t, "summary", got, map[string]int{
		"Placed on hold": 1, "SASL authentication failed": 3, "Reject warnings (warn_if_reject)": 1,
		"Accepted": 9, "Rejected": 7, // those that were greylisted are not among them
		"5xx Reject relay denied": 1, "5xx Reject HELO/EHLO": 1, "5xx Reject unknown user": 2, "5xx Reject sender address": 1, "5xx Reject RBL": 1,
		"5xx Reject header": 1, "4xx Reject sender address": 2, "Warn Reject sender address": 1,
		"Connections": d.sessions, "Disconnections": d.sessions, "Connections lost (inbound)": 4, "Removed from queue": 5, "Postfix start": 1,
		"Delivered": 5, "Sent via SMTP": 2, "Deferred": 1, "Deferrals": 1, "Bounced (local)": 1, "Discarded": 1, "Warned": 1, "Notifications sent": 1,
		"SMTP protocol violations": 2, "TLS connections (server)": 3, "SASL authenticated messages": 1,
	})
	_, unmatched, _ := strings.Cut(rest, "**Unmatched Entries**")
	for line := range strings.Lines(unmatched) {
		if strings.TrimSpace(line) != "" {
			t.Errorf("not understood: %s", line)
		}
	}
}

func (d *logDay) fail2ban(t *testing.T) {
	program, filters := unpackedFile(t, "fail2ban", "usr/bin/fail2ban-regex"), unpackedFile(t, "fail2ban", "etc/fail2ban")
	for mode, want := range map[string]map[string]int{
		"normal":     {"127.0.0.21": 2, "127.0.0.22": 1, "127.0.0.24": 1, "127.0.0.41": 1, "127.0.0.42": 1, "127.0.0.51": 1},
		"auth":       {"127.0.0.31": 2, "127.0.0.32": 1}, // the jail postfix-sasl
		"aggressive": {"127.0.0.1": 1, "127.0.0.21": 2, "127.0.0.22": 1, "127.0.0.24": 1, "127.0.0.31": 3, "127.0.0.32": 3, "127.0.0.41": 1, "127.0.0.42": 1, "127.0.0.43": 1, "127.0.0.51": 1},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel() // each spends its time on looking for its own name in the DNS
			out := d.read(t, need(t, "python3"), program, "-c", filters, "-o", "ip", d.path("mail.log"), filters+"/filter.d/postfix.conf[mode="+mode+"]")
			same(t, mode, counts(regexp.MustCompile("(?m)^").ReplaceAllString(out, "1 "), `^(1) (\d\S+)$`), want)
		})
	}
}

// startExporter starts Prometheus's exporter for Postfix, on the log file, and returns its address; it returns "" where there is none.
func startExporter(t *testing.T, s *system) string {
	t.Helper()
	program := filepath.Join(unpacked, "prometheus-postfix-exporter/usr/bin/prometheus-postfix-exporter")
	if _, err := os.Stat(program); err != nil {
		return ""
	}
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	cmd := exec.Command(program, "--web.listen-address="+address, "--postfix.logfile_path="+s.path("mail.log"), "--postfix.showq_path="+s.path("none"))
	var out testproc.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the exporter said:\n%s", out.String())
		}
	})
	testproc.Start(t, cmd, t.TempDir())
	s.eventually("the exporter answers", func() bool {
		_, err := scrape(address, "")
		return err == nil
	})
	return address
}

func (d *logDay) exporter(t *testing.T, address string) {
	unpackedFile(t, "prometheus-postfix-exporter", "usr/bin/prometheus-postfix-exporter")
	want := map[string]float64{
		"postfix_smtpd_connects_total": float64(d.sessions), "postfix_smtpd_disconnects_total": float64(d.sessions),
		`postfix_smtpd_messages_processed_total{sasl_method=""}`:       7,
		`postfix_smtpd_messages_processed_total{sasl_method="PLAIN,"}`: 1,
		`postfix_smtpd_messages_rejected_total{code="450"}`:            2,
		`postfix_smtpd_messages_rejected_total{code="504"}`:            1,
		`postfix_smtpd_messages_rejected_total{code="550"}`:            2,
		`postfix_smtpd_messages_rejected_total{code="554"}`:            3,
		`postfix_smtpd_sasl_authentication_failures_total`:             3,
		`postfix_smtpd_connections_lost_total{after_stage="AUTH"}`:     1,
		`postfix_smtpd_connections_lost_total{after_stage="CONNECT"}`:  1,
		`postfix_smtpd_connections_lost_total{after_stage="EHLO"}`:     1,
		`postfix_cleanup_messages_processed_total`:                     7,
		`postfix_cleanup_messages_rejected_total`:                      1,
		`postfix_qmgr_messages_inserted_receipients_count`:             6,
		`postfix_qmgr_messages_inserted_receipients_sum`:               9,
		`postfix_qmgr_messages_removed_total`:                          5,
		`postfix_smtp_status_deferred`:                                 1,
		`postfix_smtp_delivery_delay_seconds_count{stage=""}`:          16, // four parts of delays= each
	}
	d.awaitSeries(address, want)
}
