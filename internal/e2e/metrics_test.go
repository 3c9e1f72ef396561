package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func buildMetrics() error { return buildAside("posthaste-metrics") }

// newMeasured is newSystem with metrics, at the address that it returns.
func newMeasured(t testing.TB, o options) (s *system, address string) {
	t.Helper()
	if err := buildMetrics(); err != nil {
		t.Fatal(err)
	}
	address = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	o.main += "metrics_listen = " + address + "\n"
	return newSystem(t, o), address
}

// scrape reads the metrics; accept is the form that is asked for.
func scrape(address, accept string) (string, error) { return scrapePath(address, "/metrics", accept) }

// scrapePath is scrape of another path.
func scrapePath(address, path, accept string) (string, error) {
	req, err := http.NewRequest("GET", "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != 200 {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return string(b), err
}

// series are the values of a scrape by name and labels.
func series(text string) map[string]float64 {
	values := make(map[string]float64)
	for _, m := range regexp.MustCompile(`(?m)^([a-z][^ #]*(?:\{.*\})?) ([-+.0-9eE]+)$`).FindAllStringSubmatch(text, -1) {
		values[m[1]], _ = strconv.ParseFloat(m[2], 64)
	}
	return values
}

// awaitSeries waits until a scrape has these values, and returns it.
func (s *system) awaitSeries(address string, want map[string]float64) string {
	s.t.Helper()
	var text string
	var wrong []string
	defer func() {
		if s.t.Failed() {
			s.t.Logf("wrong: %q in\n%s", wrong, text)
		}
	}()
	s.eventually("the metrics are what they should be", func() bool {
		got, err := scrape(address, "text/plain")
		if err != nil {
			return false
		}
		text, wrong = got, nil
		values := series(text)
		for k, v := range want {
			if g, ok := values[k]; !ok || g != v {
				wrong = append(wrong, fmt.Sprintf("%s %v, want %v", k, g, v))
			}
		}
		return len(wrong) == 0
	})
	return text
}

// Mail of every fate flows, and what is scraped is what happened; a service
// that ends, killed or not, takes no totals with it that have been scraped.
func TestMetrics(t *testing.T) {
	t.Parallel()
	next := newSink(t, func(line string) string {
		switch {
		case strings.Contains(line, "later@"):
			return "450 4.2.1 try later\r\n"
		case strings.Contains(line, "never@"):
			return "550 5.1.1 no such user\r\n"
		}
		return ""
	})
	s, address := newMeasured(t, options{main: next.relayhost() + "smtpd_recipient_restrictions = check_recipient_access inline:{no@to.test=REJECT}, permit\n"})
	for i := range 3 {
		s.mustSend("a@from.test", []string{fmt.Sprintf("ok%d@to.test", i), "ok@to.test"}, "Subject: x\n\nx\n")
	}
	s.mustSend("a@from.test", []string{"later@to.test"}, "Subject: x\n\nx\n")
	s.mustSend("a@from.test", []string{"never@to.test"}, "Subject: x\n\nx\n")
	if err := s.send("a@from.test", []string{"no@to.test"}, ""); replyCode(err) != 554 {
		t.Fatal(err)
	}
	s.waitLog(`sender non-delivery notification`)
	smtpd := "127.0.0.1:" + strconv.Itoa(s.port)
	want := map[string]float64{
		`posthaste_accepted_messages_total{source="network"}`:                                                                 5,
		`posthaste_accepted_messages_total{source="internal"}`:                                                                1,
		`posthaste_smtpd_connections_total{service="` + smtpd + `"}`:                                                          6,
		`posthaste_rejected_total{action="reject",class="5",reason="recipient address",service="` + smtpd + `",stage="RCPT"}`: 1,
		`posthaste_smtpd_commands_total{command="rcpt",result="ok",service="` + smtpd + `"}`:                                  8,
		`posthaste_smtpd_commands_total{command="rcpt",result="refused",service="` + smtpd + `"}`:                             1,
		`posthaste_deliveries_total{service="smtp",status="sent"}`:                                                            6 + 1, // the notification goes out, too
		`posthaste_deliveries_total{service="smtp",status="deferred"}`:                                                        1,
		`posthaste_deliveries_total{service="smtp",status="bounced"}`:                                                         1,
		`posthaste_delivery_delay_seconds_count{service="smtp",status="sent"}`:                                                7,
		`posthaste_notifications_total{kind="bounce"}`:                                                                        1,
		`posthaste_queue_removals_total`:                                                                                      5,
		`posthaste_queue_messages{queue="deferred"}`:                                                                          1,
		`posthaste_queue_messages{queue="active"}`:                                                                            0,
		`posthaste_spool_messages`:                                                                                            1,
		`posthaste_scheduler_destinations{state="ready",transport="smtp"}`:                                                    1,
		`posthaste_processes{service="qmgr"}`:                                                                                 1,
		`posthaste_processes{service="metrics"}`:                                                                              1,
	}
	destination := `posthaste_destination_todo{destination="` + strings.TrimSpace(strings.TrimPrefix(next.relayhost(), "relayhost = ")) + `",transport="smtp"}`
	want[destination] = 1                                                            // what the host has deferred
	delete(want, `posthaste_scheduler_destinations{state="ready",transport="smtp"}`) // it is forgotten when nothing waits for it
	text := s.awaitSeries(address, want)
	values := series(text)
	for _, name := range []string{`posthaste_spool_syncs_total`, `posthaste_spool_commits_total`, `posthaste_spool_live_bytes`, `posthaste_spool_disk_bytes`,
		`posthaste_process_resident_bytes{service="qmgr"}`, `posthaste_process_goroutines{service="cleanup"}`, `posthaste_queue_oldest_seconds{queue="deferred"}`,
		`posthaste_log_lines_total{level="info",service="qmgr"}`, `posthaste_scheduler_decisions_total`} {
		if values[name] <= 0 {
			t.Errorf("%s is %v", name, values[name])
		}
	}
	delete(want, destination)
	want[`posthaste_destination_todo{destination="unknown",transport="unknown"}`] = 1 // to the new queue manager
	// The gauges come back with the new processes, the totals stay.
	s.kill("qmgr", "smtpd", "cleanup")
	s.mustSend("a@from.test", []string{"again@to.test"}, "Subject: x\n\nx\n")
	want[`posthaste_accepted_messages_total{source="network"}`]++
	want[`posthaste_deliveries_total{service="smtp",status="sent"}`]++
	want[`posthaste_delivery_delay_seconds_count{service="smtp",status="sent"}`]++
	want[`posthaste_queue_removals_total`]++
	want[`posthaste_smtpd_connections_total{service="`+smtpd+`"}`]++
	want[`posthaste_smtpd_commands_total{command="rcpt",result="ok",service="`+smtpd+`"}`]++
	s.awaitSeries(address, want)

	delete(want, `posthaste_destination_todo{destination="unknown",transport="unknown"}`)
	// And at a reload, where the metrics service itself is another.
	want[`posthaste_delivery_replies_total{class="4xx",dsn="4.2.1",service="smtp"}`] = 1
	want[`posthaste_domain_deliveries_total{domain="to.test",status="bounced"}`] = 1
	want[`posthaste_domain_todo{domain="to.test"}`] = 1
	before := s.processes("metrics")
	s.awaitSeries(address, want)
	s.mustTool("reload")
	s.eventually("another metrics service publishes", func() bool {
		now := s.processes("metrics")
		return len(now) > 0 && !slices.Contains(now, before[0])
	})
	s.awaitSeries(address, want)

	open, err := scrape(address, "application/openmetrics-text; version=1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(open, "# EOF\n") || !strings.Contains(open, "posthaste_queue_removals_created ") {
		t.Errorf("this is not OpenMetrics:\n%s", open)
	}
	checkMetrics(t, text)
}

// checkMetrics has promtool judge the text.
func checkMetrics(t *testing.T, text string) {
	t.Helper()
	cmd := exec.Command(need(t, "promtool"), "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil || out.Len() > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out.String())
	}
}
