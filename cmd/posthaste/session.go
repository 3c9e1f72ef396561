package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/resolver"
	"posthaste/internal/sendmail"
	"posthaste/internal/sendmail/dropper"
	"posthaste/internal/service"
	"posthaste/internal/submit"
	"posthaste/smtpd"
	"posthaste/trivialrewrite"
)

// standAlone are the settings of an SMTP session on standard input: whoever
// can run it may send mail, and nothing of the network's concerns applies.
var standAlone = []config.Override{
	{Name: "mynetworks", Value: "127.0.0.0/8"}, {Name: "smtpd_client_restrictions"}, {Name: "smtpd_helo_restrictions"},
	{Name: "smtpd_sender_restrictions"}, {Name: "smtpd_recipient_restrictions"},
	{Name: "smtpd_relay_restrictions", Value: "permit_mynetworks, reject"}, {Name: "smtpd_data_restrictions"},
	{Name: "smtpd_end_of_data_restrictions"}, {Name: "smtpd_etrn_restrictions", Value: "reject"},
	{Name: "smtpd_reject_unlisted_recipient", Value: "no"}, {Name: "smtpd_reject_unlisted_sender", Value: "no"},
	{Name: "smtpd_helo_required", Value: "no"}, {Name: "smtpd_forbid_unauth_pipelining", Value: "no"}, {Name: "smtpd_milters"}, {Name: "smtpd_proxy_filter"},
	{Name: "smtpd_tls_security_level", Value: "none"}, {Name: "smtpd_tls_wrappermode", Value: "no"},
	{Name: "smtpd_sasl_auth_enable", Value: "no"}, {Name: "smtpd_upstream_proxy_protocol"},
}

// session speaks SMTP on standard input and output: sendmail -bs.
func session(c *sendmail.Command) int {
	err := runSession(c)
	if err != nil {
		fmt.Fprintf(c.Stderr, "sendmail: fatal: %v\n", err)
		return sendmail.ExitUnavailable
	}
	return sendmail.ExitOK
}

func runSession(c *sendmail.Command) error {
	cfg, err := config.Load(config.Dir(""), standAlone...)
	if err != nil {
		return err
	}
	log, err := maillog.Open(cfg, "smtpd")
	if err != nil {
		return err
	}
	defer log.Close()
	warn := service.TableOptions(cfg, log)
	warn.Proxy = filepath.Join(cfg.String("queue_directory"), warn.Proxy)
	rewriter, err := trivialrewrite.New(cfg, warn)
	if err != nil {
		return err
	}
	defer rewriter.Close()
	drop := dropper.New(c, cfg)
	defer drop.Close()
	client := drop.Client()
	defer client.Close()
	submitter := submit.New(client)
	defer submitter.Close()
	options, err := resolver.Configured(cfg)
	if err != nil {
		return err
	}
	options.Warn = log.Warning
	dns := resolver.New(options)
	defer dns.Close()
	ctx := context.Background()
	srv, err := smtpd.New(ctx, smtpd.Deps{Config: cfg, Log: log, Service: "stdin", Submit: submitter,
		Router: router{rewriter}, DNS: dns, Names: dns, MaxProc: 1})
	if err != nil {
		return err
	}
	defer srv.Close()
	srv.ServeConn(ctx, &stdio{in: c.Stdin, out: c.Stdout})
	return nil
}

// router is trivial-rewrite in our own process.
type router struct{ *trivialrewrite.Rewriter }

func (r router) Rewrite(_ context.Context, where, addr string) (string, error) {
	return r.Rewriter.Rewrite(where, addr), nil
}

func (r router) Resolve(ctx context.Context, sender, addr string) (proto.ResolveReply, error) {
	return trivialrewrite.Reply(r.Rewriter.Resolve(ctx, sender, addr, false)), nil
}

// stdio is standard input and output as a connection from this host.
type stdio struct {
	in  io.Reader
	out io.Writer
}

var loopback = net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0"))

func (s *stdio) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *stdio) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s *stdio) LocalAddr() net.Addr         { return loopback }
func (s *stdio) RemoteAddr() net.Addr        { return loopback }

// Close ends a read that is under way, where the input allows that.
func (s *stdio) Close() error {
	if f, ok := s.in.(*os.File); ok {
		return f.Close()
	}
	return nil
}

func (s *stdio) SetDeadline(t time.Time) error {
	s.SetWriteDeadline(t)
	return s.SetReadDeadline(t)
}

// SetReadDeadline works where input is a pipe or a socket; a terminal or a
// file has no time limit.
func (s *stdio) SetReadDeadline(t time.Time) error {
	if f, ok := s.in.(*os.File); ok {
		f.SetReadDeadline(t)
	}
	return nil
}

func (s *stdio) SetWriteDeadline(t time.Time) error {
	if f, ok := s.out.(*os.File); ok {
		f.SetWriteDeadline(t)
	}
	return nil
}
