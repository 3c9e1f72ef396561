// Package showq is the showq service. A program that connects to its socket, public/showq,
// receives the mail queue in the format of Postfix's showq(8), release 3.0 and later. It is for
// programs that read that socket, such as prometheus-postfix-exporter; postqueue(1) asks the
// queue manager instead.
//
// The output is a list of attributes. Each is a name and a value, both followed by a zero byte;
// an empty name ends a group. The first group is the name of the protocol. Then each message has
// a group: queue_name, queue_id, time, size, forced_expire and sender, and for each recipient
// recipient and reason. An empty group ends the list.
//
// Messages in maildrop are listed first. While the queue manager is down the service waits for it. Where several nodes share
// the queue (spool_type) all of it is listed, what this node has first; the format has no place for the name of a node. If
// the mail of one cannot be read, the rest is listed, without the empty group at the end.
//
// # Security
//
// It runs as mail_owner. Those who may search the directory public can connect: root, the mail
// owner, and members of setgid_group. A client that does not read is disconnected after a
// minute. Nothing that a client sends is read.
//
// # Parameters
//
// queue_service_name, spool_type.
package showq

import (
	"bufio"
	"context"
	"net"
	"strconv"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/rfc5322"
	"posthaste/internal/service"
)

// patience is how long a client may let us wait, and how long the queue manager
// may take to begin.
const patience = time.Minute

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "showq", Rank: service.Intake, Sandbox: service.Plain, Frugal: true, Run: run}
}

func run(ctx context.Context, env *service.Env) error {
	client := ipc.NewClient(env.Public(env.Config.String("queue_service_name")), nil)
	defer client.Close()
	return env.ServeConns(ctx, func(ctx context.Context, conn net.Conn) {
		defer conn.Close()
		if err := serve(ctx, env.Config, client, conn); err != nil {
			env.Log.Warning("the queue cannot be listed to the end: %v", err)
		}
	})
}

// serve lists the queue to one client.
func serve(ctx context.Context, cfg *config.Config, client *ipc.Client, conn net.Conn) error {
	began, cancel := context.WithTimeout(ctx, patience)
	manager, err := client.Conn(began)
	cancel()
	if err != nil {
		return err
	}
	w := writer{Writer: bufio.NewWriter(patient{conn})}
	w.attribute("protocol", "mail_queue_list_protocol")
	w.end()
	more := true
	each := func(it *proto.Item) bool {
		w.item(it)
		more = w.err == nil && ctx.Err() == nil
		return more
	}
	// The process is in the queue directory, which may be all that it sees.
	if err = queueclient.DroppedIn("maildrop", each); err == nil && more {
		err = queueclient.EachOf(ctx, cfg, manager, each)
	}
	if err == nil && w.err == nil {
		w.end()
	}
	_ = w.Flush() // a client that has enough is no failure
	return err
}

// patient gives up what takes too long to be read.
type patient struct{ net.Conn }

func (p patient) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}

// A writer writes attributes. Its error is the first one.
type writer struct {
	*bufio.Writer
	err error
}

func (w *writer) text(s string) {
	for i := range len(s) {
		if s[i] == 0 { // it would end the value
			s = s[:i]
			break
		}
	}
	if _, err := w.WriteString(s); err != nil {
		w.err = err
	}
	w.end()
}

func (w *writer) attribute(name, value string) {
	w.text(name)
	w.text(value)
}

// end ends a group.
func (w *writer) end() {
	if err := w.WriteByte(0); err != nil {
		w.err = err
	}
}

// item writes a message.
func (w *writer) item(it *proto.Item) {
	w.attribute("queue_name", it.Queue)
	w.attribute("queue_id", string(it.ID))
	w.attribute("time", strconv.FormatInt(it.Arrival.Unix(), 10))
	w.attribute("size", strconv.FormatInt(it.Size, 10))
	expire := "0"
	if it.ForcedExpire {
		expire = "1"
	}
	w.attribute("forced_expire", expire)
	sender := "MAILER-DAEMON"
	if it.Sender != "" {
		sender = rfc5322.Quote(it.Sender)
	}
	w.attribute("sender", sender)
	for i := range it.Recipients {
		r := &it.Recipients[i]
		w.attribute("recipient", rfc5322.Quote(r.Address))
		w.attribute("reason", r.Why())
	}
	w.end()
}
