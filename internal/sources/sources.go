// Package sources is "posthaste sources": how the sources do that mail goes from.
//
// # Security
//
// It asks the queue manager, over a socket that the permissions of the queue directory guard.
package sources

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
)

// Run carries out the command and returns its exit status.
func Run(name string, args []string, stdout, stderr io.Writer) int {
	tool := cli.Tool{Name: name, Stderr: stderr}
	out := &cli.ErrWriter{W: stdout}
	opts, names, err := cli.Getopt(args, "c:j")
	if err != nil {
		return tool.Fatal(cli.ExitUsage, "usage: %s [-c config_dir] [-j] [name ...]", name)
	}
	dir, asJSON := "", false
	for _, o := range opts {
		switch o.Letter {
		case 'c':
			dir = o.Value
		case 'j':
			asJSON = true
		}
	}
	list, err := ask(dir)
	if err == nil {
		list, err = chosen(list, names)
	}
	if err != nil {
		return tool.Fail(err)
	}
	for i := range list {
		if asJSON {
			writeJSON(out, &list[i])
		} else {
			write(out, &list[i])
		}
	}
	if out.Err != nil {
		return tool.Fatal(cli.ExitIO, "%v", out.Err)
	}
	return 0
}

// ask asks the queue manager.
func ask(dir string) ([]proto.SourceInfo, error) {
	queue, err := queueclient.Open(dir)
	if err != nil {
		return nil, err
	}
	defer queue.Close()
	conn, err := queue.Manager(context.Background())
	if err != nil {
		return nil, cli.Errorf(cli.Status(err), "only the running queue manager knows: %w", err)
	}
	var reply proto.SourcesReply
	err = conn.Call(context.Background(), &proto.Sources{}, &reply)
	return reply.Sources, err
}

// chosen are the sources that are named; all, when none is.
func chosen(list []proto.SourceInfo, names []string) ([]proto.SourceInfo, error) {
	if len(names) == 0 {
		return list, nil
	}
	var some []proto.SourceInfo
	for _, name := range names {
		i := slices.IndexFunc(list, func(s proto.SourceInfo) bool { return s.Name == name })
		if i < 0 {
			return nil, cli.Errorf(cli.ExitNoInput, "no mail has gone from source %q since the queue manager started", name)
		}
		some = append(some, list[i])
	}
	return some, nil
}

// write prints a source for people.
func write(w io.Writer, s *proto.SourceInfo) {
	fmt.Fprintf(w, "%s: %s", s.Name, orNone(s.Spec))
	if s.Day > 0 {
		over := "from other sources"
		if s.Wait {
			over = "the next day"
		}
		fmt.Fprintf(w, "; day %d of its warm-up, %d recipients at each provider, what is over goes %s", s.Day, s.Warmup, over)
	}
	fmt.Fprintln(w)
	var pools []string
	for _, p := range s.Pools {
		pools = append(pools, fmt.Sprintf("%s (weight %d)", p.Name, p.Weight))
	}
	if len(pools) > 0 {
		fmt.Fprintf(w, "  in %s\n", strings.Join(pools, ", "))
	}
	if s.Suspended != "" {
		fmt.Fprintf(w, "  %s\n", s.Suspended)
	}
	for _, l := range s.Limits {
		fmt.Fprintf(w, "  %s %s: %s\n", l.Level, l.Name, l.Text)
	}
	for _, d := range s.Dests {
		fmt.Fprintf(w, "  rests at %s (%s) until %s: %s\n", d.Dest, d.Transport, d.Until.Local().Format(time.DateTime), d.Reason)
	}
}

func orNone(spec string) string {
	if spec == "" {
		return "no mail has gone from it since the queue manager started"
	}
	return spec
}

// writeJSON prints a source as one line of JSON.
func writeJSON(w io.Writer, s *proto.SourceInfo) {
	type pool struct {
		Name   string `json:"name"`
		Weight int    `json:"weight"`
	}
	type limit struct {
		Level   string `json:"level"`
		Name    string `json:"name"`
		Sent    int64  `json:"sent"`
		Warmup  int64  `json:"warmup,omitempty"`
		Text    string `json:"text"`
		Waiting int    `json:"waiting"`
	}
	type dead struct {
		Transport   string    `json:"transport"`
		Destination string    `json:"destination"`
		Until       time.Time `json:"until"`
		Reason      string    `json:"reason"`
	}
	x := struct {
		Name      string  `json:"name"`
		Spec      string  `json:"spec"`
		Pools     []pool  `json:"pools"`
		Day       int     `json:"day,omitempty"`
		PerDay    int64   `json:"per_day,omitempty"`
		Wait      bool    `json:"wait,omitempty"`
		Suspended string  `json:"suspended,omitempty"`
		Limits    []limit `json:"limits"`
		Dead      []dead  `json:"dead"`
	}{s.Name, s.Spec, []pool{}, s.Day, s.Warmup, s.Wait, s.Suspended, []limit{}, []dead{}}
	for _, p := range s.Pools {
		x.Pools = append(x.Pools, pool(p))
	}
	for _, l := range s.Limits {
		x.Limits = append(x.Limits, limit{l.Level, l.Name, l.Sent, l.Warmup, l.Text, l.Waiting})
	}
	for _, d := range s.Dests {
		x.Dead = append(x.Dead, dead{d.Transport, d.Dest, d.Until.UTC(), d.Reason})
	}
	_ = json.NewEncoder(w).Encode(x) // w keeps its error
}
