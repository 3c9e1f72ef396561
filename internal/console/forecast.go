package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/whatif"
)

const (
	// forecastTime bounds how long a forecast may take, from the copy of the queue to the last run. It is less than
	// answerTime.
	forecastTime = 75 * time.Second
	// maxForecasts bounds the forecasts of all users at a time: each keeps a processor busy.
	maxForecasts = 2
	// forecastWait is when somebody is to try again.
	forecastWait = 5 * time.Second
	// forecastSeed makes two forecasts of the same queue the same, and so comparable.
	forecastSeed = 1
	// maxIdeas bounds the changes that the page proposes.
	maxIdeas = 6
)

// Errors of who asks for too much at a time.
var (
	errForecast  = errors.New("a forecast of yours is being made: wait for it, or leave it")
	errForecasts = errors.New("other users' forecasts are being made: try again in a moment")
)

// forecasts makes forecasts, a few at a time. Its methods may be called concurrently.
type forecasts struct {
	settings *whatif.Settings
	broken   error // why there are no settings; nil: there are

	mu   sync.Mutex
	busy map[string]bool // whose is being made
}

// openForecasts reads the settings, which cannot be read any more when the service is confined.
func openForecasts(cfg *config.Config) *forecasts {
	f := &forecasts{busy: make(map[string]bool)}
	f.settings, f.broken = whatif.ReadSettings(cfg)
	return f
}

// begin makes room for a forecast of a user's, which done ends.
func (f *forecasts) begin(user string) (done func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.busy[user]:
		return nil, errForecast
	case len(f.busy) >= maxForecasts:
		return nil, errForecasts
	}
	f.busy[user] = true
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.busy, user)
	}, nil
}

// opWhatIf forecasts what becomes of the queue. It ends when who asks has gone.
func (c *console) opWhatIf(q *query) (any, error) {
	over, err := whatif.Changes(changeLines(q.values["o"]))
	if err != nil {
		return nil, err
	}
	if c.forecasts.broken != nil {
		return nil, c.forecasts.broken
	}
	done, err := c.forecasts.begin(q.session.user)
	if err != nil {
		return nil, err
	}
	defer done()
	begin := time.Now()
	mail, err := c.mta.copyQueue(q.ctx, c.now())
	if err != nil {
		return nil, err
	}
	return c.forecasts.settings.Ask(q.ctx, mail, whatif.Question{Changes: over, Seed: forecastSeed, Within: forecastTime - time.Since(begin)})
}

// copyQueue is a copy of the queue as forecasts need it.
func (m *mta) copyQueue(ctx context.Context, now time.Time) (*whatif.Copy, error) {
	ctx, cancel := context.WithTimeout(ctx, forecastTime/2)
	defer cancel()
	conn, err := m.manager.Conn(ctx)
	if err != nil {
		return nil, errDown
	}
	mail, err := whatif.Take(ctx, conn, now)
	if err != nil && cli.Status(err) != cli.ExitData {
		return nil, fmt.Errorf("%w: %w", errDown, err)
	}
	if err != nil || m.node == "" {
		return mail, err
	}
	r, err := m.reach(ctx)
	if err != nil {
		return nil, err
	}
	mail.Beside(ctx, m.node, r.owners, r.missing, now)
	return mail, nil
}

// changeLines are the lines of the parameter o: a program repeats it, and a page has lines in it.
func changeLines(values []string) []string {
	return strings.FieldsFunc(strings.Join(values, "\n"), func(r rune) bool { return r == '\n' || r == '\r' })
}

// A whatIfBody is the form, and the forecast.
type whatIfBody struct {
	Changes string // as they were entered
	Ideas   []idea
	*whatif.Report
	Shown []whatif.Line
	More  []string
}

// An idea is a change that the page proposes.
type idea struct{ Text, Link string }

func viewWhatIf(c *console, q *query, _ *http.Request) (string, any, error) {
	const title = "What if"
	lines := changeLines(q.values["o"])
	b := whatIfBody{Ideas: c.ideas(c.transports())}
	for i := range lines {
		b.Changes += visible(lines[i]) + "\n"
	}
	if len(lines) == 0 && q.get("ask") == "" {
		return title, b, nil
	}
	report, err := c.opWhatIf(q)
	if err != nil {
		return title, b, err
	}
	b.Report = report.(*whatif.Report)
	b.Shown, b.More = b.Top()
	return title, b, nil
}

// transports are those that mail waits for, those with most mail first.
func (c *console) transports() (list []string) {
	s := c.live.latest()
	if s == nil {
		return nil
	}
	sums := make(map[string]int64)
	for i := range s.Tables {
		t := &s.Tables[i]
		if !t.Hops || t.Queue == "hold" {
			continue
		}
		for j := range t.Rows {
			if transport, _, ok := strings.Cut(t.Rows[j].Domain, ":"); ok {
				if sums[transport] == 0 {
					list = append(list, transport)
				}
				sums[transport] += t.Rows[j].Counts.Sum()
			}
		}
	}
	slices.SortStableFunc(list, func(a, b string) int { return int(min(max(sums[b]-sums[a], -1), 1)) })
	return list
}

// ideas are changes of transports: of how many deliveries a destination gets at a time.
func (c *console) ideas(transports []string) (list []idea) {
	for _, t := range transports {
		if t == "" || strings.Trim(strings.ToLower(t), "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			continue // it has no parameters of its own
		}
		now := c.machine.cfg.Prefix(t).Int("destination_concurrency_limit")
		for _, n := range []int{2 * now, now / 2} {
			if n > 0 && len(list) < maxIdeas {
				name := t + "_destination_concurrency_limit"
				list = append(list, idea{fmt.Sprintf("destinations of %s got up to %d deliveries at a time, and not %d", t, n, now), "/whatif?" + url.Values{"o": {fmt.Sprintf("%s=%d", name, n)}}.Encode()})
			}
		}
	}
	return list
}
