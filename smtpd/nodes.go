// What clients do at other nodes. With a queue that several nodes share, each of them tells the others once a second what it
// has counted of its clients, and adds what they have told to its own counts. cleanup carries the notes.
//
// Why they are counts, and not shares of the limits: most clients come to one node, and it is to give them the whole limit
// without asking anybody. What that costs is that a client can do more at the others for as long as they have not been
// told, which is a second or two. A note that is not renewed counts for nodeshare.NoteTime: a node that is cut off goes by its own
// counts alone, and so do the others without it.

package smtpd

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"time"

	"posthaste/internal/anvil"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/nodeshare"
	"posthaste/internal/pack"
	"posthaste/internal/proto"
	"posthaste/internal/service"
	"posthaste/internal/storage"
)

// toldClients bounds the clients of a note: those that have used most of a limit. Each takes some 50 octets.
const toldClients = 1000

// maxTold is more than a client takes.
const maxTold = 128

// The tags of a note. They are never used for anything else: nodes may be of different versions.
const (
	tagClient = 'c'
	tagWho    = 'k'
	tagEvent  = 'A' // of the first event; the others follow
)

// limited says whether there is any limit.
func (l *limits) limited() bool {
	for _, n := range l.max {
		if n > 0 {
			return true
		}
	}
	return false
}

// weight is how much of a limit a client has used, of the limit that it has used most of.
func (l *limits) weight(c anvil.Counts) (most float64) {
	for e, n := range l.max {
		if n > 0 {
			most = max(most, float64(c[e])/float64(n))
		}
	}
	return most
}

// note is what is told of clients.
func (l *limits) note() (b []byte) {
	for _, c := range l.Busiest(toldClients, l.weight) {
		name := c.Who.String()
		switch {
		case !c.Who.IsValid():
			continue // an address that is not known is no client that others could know
		case len(b)+maxTold > nodeshare.NoteLimit:
			return b
		}
		b = pack.Nested(b, tagClient, func(b []byte) []byte {
			b = pack.String(b, tagWho, name)
			for e, n := range c.Counts {
				b = pack.Int(b, tagEvent+byte(e), n)
			}
			return b
		})
	}
	return b
}

// topic is what the notes are about: the service, as the anvil service knows it, but for an address of this node in its name.
func (l *limits) topic() string {
	return "clients " + l.service[strings.LastIndexByte(l.service, ':')+1:]
}

// heard is the sum of what others have told. What cannot be understood is left out: it is of another version.
func heard(notes [][]byte) map[netip.Prefix]anvil.Counts {
	sum := map[netip.Prefix]anvil.Counts{}
	for _, note := range notes {
		for r := pack.NewReader(note); r.Next(); {
			if r.Tag() != tagClient {
				continue
			}
			var name string
			var counts anvil.Counts
			for n := r.Nested(); n.Next(); {
				if n.Tag() == tagWho {
					name = n.String()
				} else if e := int(n.Tag()) - tagEvent; e >= 0 && e < len(counts) {
					counts[e] = max(int(n.Int()), 0)
				}
			}
			k, err := netip.ParsePrefix(name)
			if err != nil {
				continue
			}
			all := sum[k]
			for e, n := range counts {
				all[e] += n
			}
			sum[k] = all
		}
	}
	return sum
}

// amongNodes exchanges notes with other nodes, if the queue is one that nodes share, until the function is called that it
// returns, or the process is told to stop: its successor speaks for the node then.
func (l *limits) amongNodes(ctx context.Context, cfg *config.Config, cleanup *ipc.Client) (end func()) {
	if !storage.Elsewhere(cfg) || !l.limited() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(service.Stopping(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { l.tellNodes(ctx, cleanup) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// tellNodes exchanges notes until ctx ends. It is a goroutine.
func (l *limits) tellNodes(ctx context.Context, cleanup *ipc.Client) {
	t := time.NewTicker(nodeshare.NotePeriod)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		calling, cancel := context.WithTimeout(ctx, nodeshare.NoteTime)
		began := time.Now()
		var reply proto.NotesReply
		// While the queue is away there is no answer, nor any mail. What the others have told before is good for a while.
		conn, err := cleanup.Conn(calling)
		if err == nil {
			err = conn.Call(calling, &proto.Notes{Topic: l.topic(), Note: l.note()}, &reply)
		}
		if err == nil {
			l.SetOthers(heard(reply.Notes), began.Add(nodeshare.NoteTime))
		}
		cancel()
	}
}
