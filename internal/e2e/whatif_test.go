package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// forecast is what the test reads of the output of "posthaste whatif -j".
type forecast struct {
	Messages int
	Lines    []struct {
		Kind, Name string
		Now, Then  struct{ Most, Last *float64 }
	}
}

// A forecast of a live queue says what a change will do, and after that change it comes true. Which
// parameters change nothing is said by name. With -mix.whole the loads are larger, and what happens
// must be within a fifth of the forecast.
func TestWhatIf(t *testing.T) {
	t.Parallel()
	for _, load := range []struct {
		name, main, change string
		server             int64 // connections that it takes
		faster             bool  // the change makes it so
	}{
		{"a larger window", "smtp_destination_concurrency_limit = 4\n", "smtp_destination_concurrency_limit=10", 1000, true},
		{"a smaller window", "smtp_destination_concurrency_limit = 10\n", "smtp_destination_concurrency_limit=4", 1000, false},
	} {
		t.Run(load.name, func(t *testing.T) {
			t.Parallel()
			messages := 40
			if *wholeMix {
				messages = 150
			}
			server := newLimited(t, load.server, 50*time.Millisecond)
			main := "smtp_destination_recipient_limit = 2\n" + load.main + relayTo(server)
			s := newSystem(t, options{main: main})
			to := make([]string, 20)
			for i := range to {
				to[i] = fmt.Sprintf("u%d@dest.test", i)
			}
			send := func(n int) {
				for range n {
					s.eventually("it takes mail", func() bool { return s.send("a@from.test", to, "Subject: x\n\nx\n") == nil })
				}
			}
			const first = 10
			send(first)
			sent := regexp.MustCompile(`status=sent`)
			s.eventually("some is measured", func() bool { return len(sent.FindAllString(s.log(), -1)) >= 60 })
			// The rest comes while the server rests, so that a busy machine is in time to send it and to ask before all has
			// gone. What has no effect is refused.
			server.pause.Lock()
			resume := sync.OnceFunc(server.pause.Unlock)
			defer resume()
			send(messages - first)
			for _, o := range []string{"lmtp_destination_concurrency_limit=3", "smtpd_recipient_limit=3", load.change[:strings.IndexByte(load.change, '=')] + "=" + strings.TrimSpace(load.main[strings.IndexByte(load.main, '=')+1:])} {
				if out, status := s.tool(nil, "whatif", "-o", o); status != 64 || !strings.Contains(out, o[:strings.IndexByte(o, '=')]) || !strings.Contains(out, "has no effect on the forecast") {
					t.Errorf("-o %s: status %d: %s", o, status, out)
				}
			}
			out, status := s.tool(nil, "whatif", "-j", "-o", load.change)
			resume()
			begin := time.Now()
			var f forecast
			if err := json.Unmarshal([]byte(out), &f); status != 0 || err != nil || len(f.Lines) < 2 || f.Lines[0].Now.Last == nil || f.Lines[0].Then.Last == nil {
				t.Fatalf("status %d, %v: %s", status, err, out)
			}
			now, then := *f.Lines[0].Now.Last, *f.Lines[0].Then.Last
			if f.Messages == 0 || f.Messages > messages || (then < now) != load.faster {
				t.Errorf("%d messages, forecast %.1f s, with the change %.1f s", f.Messages, now, then)
			}
			s.configure(main+strings.Replace(load.change, "=", " = ", 1)+"\n", "")
			s.mustTool("reload")
			s.eventually("all has gone", func() bool { return len(sent.FindAllString(s.log(), -1)) >= 20*messages })
			took := time.Since(begin).Seconds()
			t.Logf("%s: forecast %.1f s (%.1f s without the change), and it took %.1f s", load.name, then, now, took)
			if *wholeMix && math.Abs(then/took-1) > 0.2 {
				t.Errorf("the forecast was %.1f s, and it took %.1f s", then, took)
			}
		})
	}
}
