package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// A variant is a mail system whose clients wait for deliveries, or do not, on a disk.
type variant struct {
	disk, wait string
	tag, more  string // of the build; lines of main.cf
	metrics    string // where its metrics are
	*system
	rates, syncs []float64 // of each round
}

// variants are all of them, the usual way before that with a wait.
func variants() []*variant {
	const wait = "smtpd_delivery_wait = 5s\n"
	return []*variant{
		{disk: "as it is", wait: "no"},
		{disk: "as it is", wait: "5s", more: wait},
		{disk: "syncs +10 ms", wait: "no", tag: "slowsync"},
		{disk: "syncs +10 ms", wait: "5s", tag: "slowsync", more: wait},
	}
}

// waits measures what smtpd_delivery_wait does.
func waits(ctx context.Context, o *options, w io.Writer) error {
	loads, err := chosen(cmp.Or(o.workloads, "relay,relay100"))
	if err != nil {
		return err
	}
	dir, remove, err := o.place()
	if err != nil {
		return err
	}
	defer remove()
	list := variants()
	for i, v := range list {
		if err := v.open(ctx, dir, strconv.Itoa(i)); err != nil {
			return err
		}
		defer v.stop()
	}
	fmt.Fprintf(w, "%d rounds, queues in %s\n%-10s%-14s%6s%16s%18s\n", o.rounds, dir, "workload", "disk", "wait", "messages/s", "syncs/message")
	for i := range loads {
		for n := -1; n < o.rounds; n++ { // the first one warms up
			for _, v := range list {
				if err := v.measure(ctx, &loads[i], n >= 0); err != nil {
					return fmt.Errorf("%s, disk %s, wait %s: %w", loads[i].name, v.disk, v.wait, err)
				}
			}
		}
		for _, v := range list {
			fmt.Fprintf(w, "%-10s%-14s%6s%16.0f%18.3f\n", loads[i].name, v.disk, v.wait, median(v.rates), median(v.syncs))
			v.rates, v.syncs = nil, nil
		}
	}
	return nil
}

// open starts the variant in a directory of that name below dir. Programs are built once for each disk.
func (v *variant) open(ctx context.Context, dir, name string) error {
	built := filepath.Join(dir, "bin"+v.tag)
	if _, err := os.Stat(built); err != nil {
		if err := command(ctx, ".", "go", "build", "-trimpath", "-tags", v.tag, "-o", built+"/", "./cmd/posthaste", "./cmd/posthaste-metrics"); err != nil {
			return err
		}
	}
	dir = filepath.Join(dir, name)
	if err := os.CopyFS(dir, os.DirFS(built)); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	v.metrics = "127.0.0.1:" + strconv.Itoa(port)
	v.system, err = startSystem(dir, v.more+"metrics_listen = "+v.metrics+"\n")
	return err
}

// measure sends the mail of one round, and notes the figures if they count.
func (v *variant) measure(ctx context.Context, load *workload, counts bool) error {
	before, err := v.synced(ctx)
	if err != nil {
		return err
	}
	wall, _, err := v.round(ctx, load)
	if err != nil {
		return err
	}
	after, err := v.synced(ctx)
	if err != nil || !counts {
		return err
	}
	v.rates = append(v.rates, float64(load.messages)/wall.Seconds())
	v.syncs = append(v.syncs, (after-before)/float64(load.messages))
	return nil
}

var syncsTotal = regexp.MustCompile(`(?m)^posthaste_spool_syncs_total ([0-9.e+]+)$`)

// synced is how many syncs the queue's log has had. Services are asked at each scrape.
func (v *variant) synced(ctx context.Context) (float64, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+v.metrics+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 10<<20))
	if err != nil {
		return 0, err
	}
	m := syncsTotal.FindSubmatch(b)
	if m == nil {
		return 0, nil // nothing has been synced yet
	}
	return strconv.ParseFloat(string(m[1]), 64)
}
