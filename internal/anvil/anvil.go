// Package anvil is the anvil service. A program that connects to its socket, private/anvil,
// can ask how many connections a client has and how often it does what, and can report events
// itself, in the protocol of Postfix's anvil(8). It is for other programs: a policy service
// that asks for smtpd's counts, or an SMTP server of Postfix that shares its own.
//
// The smtpd service does not need it. Each of its processes counts in its own memory, decides
// by that, and logs the peaks; the anvil service asks these processes. It starts when its
// first client connects.
//
// # Protocol
//
// A list of attributes consists of lines name=value and an empty line at the end. The server
// begins with protocol=anvil_protocol. A request has the attributes request and ident, and no
// others. ident is the name of a service in the first column of master.cf, a colon, and a
// client's address: smtp:192.0.2.1. These are the requests, and what follows status=0 in a
// reply:
//
//	connect        count, connections open at a time; rate, connections in the interval
//	message        rate, messages in the interval
//	recipient      rate, recipients in the interval
//	newtls         rate, TLS handshakes without a session to resume
//	auth           rate, attempts to log in
//	tlstr          rate, traces of TLS handshakes
//	newtls_status  rate as newtls, and counts nothing
//	lookup         count rate mail rcpt newtls auth, and counts nothing
//	disconnect     nothing more; the connection that was told last is gone
//
// The reply to any other request is status=-1. When a program closes its connection, the SMTP
// connection that it reported last, and did not end, counts as ended.
//
// The numbers are the sum of what was told to this service and of what the processes of smtpd
// have counted under the same ident. Counts begin anew after anvil_rate_time_unit. Where
// smtpd_client_ipv4_prefix_length or smtpd_client_ipv6_prefix_length is less than an address,
// the number is that of the client's network. Where several nodes share a queue (spool_type =
// postgresql), what the other nodes' smtpd has counted is in the sum, as of a second or two before.
//
// # Security
//
// It runs as mail_owner. Only those who may search the directory private can connect: root and
// mail_owner. Requests and the number of their attributes are bounded, and so is the number of
// clients that are remembered, to a million. Nothing is kept on disk.
//
// # Parameters
//
// anvil_rate_time_unit, anvil_status_update_time.
//
// # Diagnostics
//
// "statistics: max connection rate 3/60s for (smtp:192.0.2.1) at ..." are peaks of what was
// reported to this service. Those of smtpd are logged by smtpd.
package anvil

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/maillog"
	"posthaste/internal/ownsocket"
	"posthaste/internal/service"
)

// room is how many clients are remembered, of some 200 octets each.
const room = 1_000_000

// maxIdent bounds the name of a client.
const maxIdent = 512

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "anvil", Rank: service.Helper, Sandbox: service.Plain, Frugal: true, Run: run}
}

func run(ctx context.Context, env *service.Env) error {
	s := newServer(env.Log, env.Config.Duration("anvil_rate_time_unit"), env.Config.Duration("anvil_status_update_time"), time.Now)
	defer s.counts.Finish()
	// Postfix's master.cf has 1, which is the one process.
	env.MaxProc = 0
	return env.ServeConns(ctx, s.serve)
}

// A server has what was told to the service.
type server struct {
	log    *maillog.Logger
	counts *Table[string] // by ident
}

func newServer(log *maillog.Logger, unit, updates time.Duration, now func() time.Time) *server {
	return &server{log: log, counts: NewTable(Options[string]{Unit: unit, Updates: updates, Now: now, Log: log, Room: room,
		Name: func(ident string) string { return ident }})}
}

// serve answers one client until it goes away.
func (s *server) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	c := visit{server: s}
	defer c.disconnect()
	if err := converse(conn, c.answer); err != nil {
		s.log.Warning("a client of anvil: %v", err)
	}
}

// A visit is one connection of a client of the service.
type visit struct {
	*server
	connected string // the client that it told of last; "" when that is gone
}

// connect counts a connection, in the place of the one that the visitor told of before.
func (c *visit) connect(ident string) {
	c.disconnect()
	if c.counts.Add(ident, Connections) > 0 {
		c.connected = ident
		c.counts.Add(ident, Connect)
	}
}

// disconnect forgets the connection that the visitor told of last.
func (c *visit) disconnect() {
	if c.connected != "" {
		c.counts.Drop(c.connected)
		c.connected = ""
	}
}

// answer carries out a request.
func (c *visit) answer(request, ident string) string {
	if len(ident) > maxIdent {
		return failed
	}
	event, counts := requests[request]
	switch {
	case counts && (event == Connect || !c.counts.Has(ident)): // as Postfix does after a reload
		if c.connect(ident); c.connected == "" {
			return failed // there is no room
		}
	case request == "disconnect":
		if c.connected == ident {
			c.disconnect()
		}
		return "status=0\n\n"
	case request == "lookup":
		return rates(c.sum(ident))
	case request == "newtls_status":
		return fmt.Sprintf("status=0\nrate=%d\n\n", c.sum(ident)[NewTLS])
	case !counts:
		c.log.Warning("unrecognized request: %.100q, ignored", request)
		return failed
	}
	if event != Connect {
		c.counts.Add(ident, event)
	}
	sum := c.sum(ident)
	if event == Connect {
		return fmt.Sprintf("status=0\ncount=%d\nrate=%d\n\n", sum[Connections], sum[Connect])
	}
	return fmt.Sprintf("status=0\nrate=%d\n\n", sum[event])
}

// sum is what the service was told of a client and what smtpd's processes have counted.
func (s *server) sum(ident string) Counts {
	sum := s.counts.Lookup(ident)
	sockets, err := ownsocket.All(Dir)
	if err != nil {
		s.log.Warning("processes of smtpd cannot be found: %v", err)
	}
	for _, socket := range sockets {
		if !strings.HasPrefix(ident, socket.Name+":") {
			continue
		}
		theirs, err := ask(socket.Path, ident)
		if err != nil {
			if _, gone := os.Stat(socket.Path); gone == nil && !errors.Is(err, syscall.ECONNREFUSED) {
				s.log.Warning("%s: %v", socket.Path, err)
			}
			continue
		}
		for e, n := range theirs {
			sum[e] += n
		}
	}
	return sum
}
