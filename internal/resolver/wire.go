package resolver

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// Sizes of replies over UDP.
const (
	ednsSize    = 1232 // that we ask for: what goes through nearly every network in one piece
	plainSize   = 512  // that goes through every network, RFC 1035 section 2.3.4
	largestSize = 4096 // that we take from servers that send more than was asked for
)

// maxForged is how many datagrams are read that do not answer the question. Somebody who
// sends more is guessing: TCP is asked in place of it.
const maxForged = 1000

// wire asks the name servers of a resolv.conf.
type wire struct {
	conf *confFile
	turn atomic.Uint32 // for "options rotate"

	silence silence
}

func newWire(path string, changed func()) *wire { return &wire{conf: newConfFile(path, changed)} }

// Exchange asks each server in turn until one answers, as often as resolv.conf
// says. A server that says that it cannot or will not answer counts only if no
// other does better; one that is silent may know more, and is asked again. Its
// reply may have been too large for some network on the way: the next time a
// small one is asked for, in place of which it sends for TCP.
func (w *wire) Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	conf := w.conf.get(time.Now())
	start := 0
	if conf.rotate {
		start = int(w.turn.Add(1) % uint32(len(conf.servers)))
	}
	var last error
	for try := range conf.attempts {
		if try == 1 && q.IsEdns0() != nil {
			q = q.Copy()
			q.IsEdns0().SetUDPSize(plainSize)
		}
		var poor *dns.Msg
		last = nil
		for i := range conf.servers {
			server := conf.servers[(start+i)%len(conf.servers)]
			m, err := ask(ctx, server, q, conf)
			if err == nil {
				w.silence.heard(server)
			} else if ctx.Err() == nil {
				w.silence.missed(server, err, time.Now())
			}
			switch {
			case err != nil:
				last = fmt.Errorf("name server %s: %w", server, err)
			case m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError:
				return m, nil
			default:
				poor = m
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
		if last == nil {
			return poor, nil
		}
	}
	return nil, last
}

// ask asks one server once, over TCP if the reply does not fit a datagram, and
// once more without EDNS if the server does not know EDNS.
func ask(ctx context.Context, server string, q *dns.Msg, conf *conf) (*dns.Msg, error) {
	q = q.Copy()
	for {
		q.Id = uint16(rand.Uint32())
		m, err := askNetwork(ctx, server, q, conf)
		if err != nil {
			return nil, err
		}
		if m.Rcode == dns.RcodeFormatError && q.IsEdns0() != nil && m.IsEdns0() == nil {
			q.Extra = nil // RFC 6891 section 7
			continue
		}
		m.AuthenticatedData = m.AuthenticatedData && conf.trusts(server)
		return m, nil
	}
}

func askNetwork(ctx context.Context, server string, q *dns.Msg, conf *conf) (*dns.Msg, error) {
	if !conf.useVC {
		m, err := exchange(ctx, "udp", server, q, conf.timeout)
		if err != nil || !m.Truncated {
			return m, err
		}
	}
	m, err := exchange(ctx, "tcp", server, q, conf.timeout)
	if err == nil && m.Truncated {
		return nil, errors.New("reply over TCP says that it is truncated")
	}
	return m, err
}

// trusts says whether the way to server is safe enough to believe its AD bit
// (RFC 6698 appendix A.3, and "trust-ad" of resolv.conf(5)).
func (c *conf) trusts(server string) bool {
	host, _, err := net.SplitHostPort(server)
	ip := net.ParseIP(host)
	return c.trustAD || err == nil && ip != nil && ip.IsLoopback()
}

// exchange sends q to server from a new socket, whose port the kernel chooses
// at random, and waits until a reply to just this question comes.
func exchange(ctx context.Context, network, server string, q *dns.Msg, timeout time.Duration) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, server)
	if err != nil {
		return nil, err
	}
	return converse(ctx, conn, network, q)
}

// converse sends q and receives the reply, until ctx ends. It closes conn.
func converse(ctx context.Context, conn net.Conn, network string, q *dns.Msg) (*dns.Msg, error) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	var room [2 + 512]byte
	packed, err := q.PackBuffer(room[2:])
	if err != nil {
		return nil, fmt.Errorf("packing the question: %w", err)
	}
	if network == "tcp" {
		msg := make([]byte, 2, 2+len(packed))
		binary.BigEndian.PutUint16(msg, uint16(len(packed)))
		packed = append(msg, packed...)
	}
	if _, err := conn.Write(packed); err != nil {
		return nil, err
	}
	return receive(conn, network, q)
}

// receive reads replies until one answers q. Over UDP anything else may be
// somebody's attempt to be believed, or late: it is skipped, until TCP is better.
// Over TCP it is an error. A reply over UDP that is cut off, or that cannot be read to its end,
// counts as truncated, whether or not it says so.
func receive(conn net.Conn, network string, q *dns.Msg) (*dns.Msg, error) {
	buf := make([]byte, largestSize)
	for range maxForged {
		var n int
		var err error
		if network == "tcp" {
			var head [2]byte
			if _, err = io.ReadFull(conn, head[:]); err == nil {
				if n = int(binary.BigEndian.Uint16(head[:])); n > len(buf) {
					buf = make([]byte, n)
				}
				_, err = io.ReadFull(conn, buf[:n])
			}
		} else {
			n, err = conn.Read(buf)
		}
		if err != nil {
			return nil, err
		}
		m := new(dns.Msg)
		broken := m.Unpack(buf[:n])
		err = answers(m, q)
		switch {
		case network == "tcp" && (broken != nil || err != nil):
			return nil, cmp.Or(broken, err)
		case err == nil:
			m.Truncated = m.Truncated || network == "udp" && (broken != nil || n == len(buf))
			return m, nil
		}
	}
	m := new(dns.Msg)
	m.SetReply(q)
	m.Truncated = true
	return m, nil
}

// answers says whether m can be the reply to q.
func answers(m, q *dns.Msg) error {
	switch {
	case !m.Response || m.Opcode != dns.OpcodeQuery:
		return errors.New("not a reply")
	case m.Id != q.Id:
		return errors.New("reply to another query")
	case len(m.Question) == 0 && m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError:
		return nil // servers that do not understand a question need not repeat it
	case len(m.Question) != 1:
		return errors.New("reply without question")
	case m.Question[0].Qtype != q.Question[0].Qtype || m.Question[0].Qclass != q.Question[0].Qclass ||
		!strings.EqualFold(m.Question[0].Name, q.Question[0].Name):
		return errors.New("reply to another question")
	}
	return nil
}
