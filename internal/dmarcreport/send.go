package dmarcreport

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/dayreport"
	"posthaste/internal/dmarcsend"
	"posthaste/internal/ipc"
	"posthaste/internal/mailauth"
	"posthaste/internal/resolver"
	"posthaste/internal/submit"
)

// sendTime bounds the sending of all reports by the command.
const sendTime = 30 * time.Minute

// ours is posthaste dmarc report --show or --send-now: the reports that this system sends.
func ours(t *cli.Tool, what string, args []string) int {
	opts, rest, err := cli.Getopt(args, "c:j")
	if err != nil || len(rest) > 0 {
		return t.Fatal(cli.ExitUsage, "%s", usage)
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
	cfg, err := config.Load(config.Dir(dir))
	if err != nil {
		return t.Fatal(cli.ExitConfig, "%v", err)
	}
	if !cfg.Bool("dmarc_report_enable") || cfg.String("mail_authentication") != "check" {
		return t.Fatal(cli.ExitUnavailable, "no reports are made: set mail_authentication = check and dmarc_report_enable = yes")
	}
	if what == "--show" {
		err = show(t, cfg, asJSON)
	} else {
		err = sendNow(t, cfg)
	}
	if err != nil {
		return t.Fail(err)
	}
	return 0
}

// show lists what is to be reported.
func show(t *cli.Tool, cfg *config.Config, asJSON bool) error {
	o := dmarcsend.OptionsOf(cfg, nil)
	o.Warn = func(text string) { t.Warn("%s", text) }
	l, err := dmarcsend.Open(o)
	if err != nil {
		return err
	}
	defer l.Close()
	list, err := l.Pending()
	if err != nil {
		return err
	}
	w := &cli.ErrWriter{W: t.Stdout}
	for _, p := range list {
		if asJSON {
			text, err := json.Marshal(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "%s\n", text)
			continue
		}
		state := "counted so far"
		switch {
		case p.Waiting:
			state = "the report waits to be sent"
		case p.Quiet:
			state = "no report: all of it looks like reports"
		}
		fmt.Fprintf(w, "%s %s: %d messages in %d rows; %s\n", p.Day, p.Domain, p.Messages, p.Rows, state)
	}
	if w.Err != nil {
		return cli.Errorf(cli.ExitIO, "%v", w.Err)
	}
	return nil
}

// sendNow makes and sends the reports of all days that are over.
func sendNow(t *cli.Tool, cfg *config.Config) error {
	options, err := resolver.Configured(cfg)
	if err != nil {
		return err
	}
	dns := resolver.New(options)
	defer dns.Close()
	own := ipc.NewClient(ipc.Unix(filepath.Join(cfg.String("queue_directory"), "public", cfg.String("cleanup_service_name"))), nil)
	defer own.Close()
	client := submit.New(own)
	defer client.Close()
	o := dmarcsend.OptionsOf(cfg, mailauth.New(dns, resolver.NamesOf(cfg), ""))
	failed := false
	o.Warn = func(text string) {
		failed = true
		t.Warn("%s", text)
	}
	o.Sent = func(report, uri string) { fmt.Fprintf(t.Stdout, "%s sent to %s\n", report, uri) }
	o.Mail = func(ctx context.Context, to string, msg []byte) error {
		return dayreport.Submit(ctx, client, o.Sender, to, msg)
	}
	l, err := dmarcsend.Open(o)
	if err != nil {
		return err
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), sendTime)
	defer cancel()
	if !l.SendNow(ctx, time.Now()) && !failed {
		return cli.Errorf(cli.ExitTemp, "the mail system sends reports just now")
	}
	list, err := l.Pending()
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.Waiting {
			return cli.Errorf(cli.ExitTemp, "the report on %s of %s could not be sent, and is tried again later", p.Domain, p.Day)
		}
	}
	return nil
}
