package nodesim

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// idleTime is how long a session may wait for its client within a transaction: idle_in_transaction_session_timeout, as
// pgspool sets it.
const idleTime = 5 * time.Second

// A session is a client's connection to a host.
type session struct {
	host   *host
	number int
	name   string
	node   string // application_name
	conn   *end
	back   *pgproto3.Backend
	rnd    *rand.Rand
	killed chan struct{}
	once   sync.Once
	cancel chan struct{} // capacity 1

	over   bool // killed; guarded by host.mu
	t      *tx  // nil: none is open
	failed bool // it is of no use any more
}

// kill ends the session: its transaction is taken back, unless it has come to be committed.
func (s *session) kill() {
	s.host.mu.Lock()
	s.over = true
	s.host.mu.Unlock()
	s.once.Do(func() { close(s.killed) })
	s.conn.Close()
}

// accept serves a connection until it ends. It is a goroutine.
func (h *host) accept(conn *end, name string) {
	s := &session{host: h, conn: conn, name: name, rnd: h.run.seed.source("session of " + name), back: pgproto3.NewBackend(conn, conn), killed: make(chan struct{}), cancel: make(chan struct{}, 1)}
	defer conn.Close()
	// A client that vanishes before it has said anything is waited for as long as PostgreSQL does (authentication_timeout).
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	first, err := s.back.ReceiveStartupMessage()
	if err != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	switch m := first.(type) {
	case *pgproto3.CancelRequest:
		h.cancelled(int(m.ProcessID))
		return
	case *pgproto3.StartupMessage:
		s.node = strings.TrimPrefix(m.Parameters["application_name"], "posthaste ")
	default:
		return
	}
	h.mu.Lock()
	if !h.up {
		h.mu.Unlock()
		return
	}
	h.next++
	s.number = h.next
	h.sessions[s] = true
	h.mu.Unlock()
	s.send(&pgproto3.AuthenticationOk{}, &pgproto3.ParameterStatus{Name: "server_version", Value: "15.14"},
		&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"}, &pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"},
		&pgproto3.BackendKeyData{ProcessID: uint32(s.number), SecretKey: []byte{0, 0, 0, 0}})
	s.ready()
	s.serve()
	h.mu.Lock()
	delete(h.sessions, s)
	if s.t != nil {
		s.t.release()
		s.t = nil
	}
	h.mu.Unlock()
}

// cancelled is a request to end what a session is doing.
func (h *host) cancelled(number int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.sessions {
		if s.number == number {
			select {
			case s.cancel <- struct{}{}:
			default:
			}
		}
	}
}

func (s *session) send(list ...pgproto3.BackendMessage) {
	for _, m := range list {
		s.back.Send(m)
	}
}

func (s *session) ready() {
	status := byte('I')
	switch {
	case s.t != nil && s.failed:
		status = 'E'
	case s.t != nil:
		status = 'T'
	}
	s.send(&pgproto3.ReadyForQuery{TxStatus: status})
	_ = s.back.Flush() // who reads notices
}

// serve answers until the client goes, or is sent away.
func (s *session) serve() {
	var sql string
	var args []string
	skip := false // until Sync, after an error
	for {
		var until time.Time
		if s.t != nil {
			until = time.Now().Add(cmp.Or(s.t.idle, idleTime))
		}
		_ = s.conn.SetReadDeadline(until)
		m, err := s.back.Receive()
		if err != nil {
			return
		}
		select {
		case <-s.cancel: // too late
		default:
		}
		switch m := m.(type) {
		case *pgproto3.Query:
			if !s.query(m.String) {
				return
			}
		case *pgproto3.Parse:
			sql = m.Query
			if !skip {
				s.send(&pgproto3.ParseComplete{})
			}
		case *pgproto3.Bind:
			args = args[:0]
			for _, p := range m.Parameters {
				if p == nil {
					args = append(args, null)
				} else {
					args = append(args, string(p))
				}
			}
			if !skip {
				s.send(&pgproto3.BindComplete{})
			}
		case *pgproto3.Execute:
			if skip {
				break
			}
			if err := s.one(sql, args); err != nil {
				if skip = s.refuse(err); !skip {
					return
				}
			}
		case *pgproto3.Sync:
			skip = false
			s.ready()
		case *pgproto3.Terminate:
			return
		}
	}
}

// refuse answers with an error; false: the session has ended.
func (s *session) refuse(err error) bool {
	s.failed = true
	if e, ok := errors.AsType[*pgError](err); ok {
		if strings.HasPrefix(e.code, "XX") {
			s.host.run.books.fail("%s", e.text) // a mistake of the simulation's own
		}
		s.send(&pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: e.code, Message: e.text})
		return true
	}
	return false
}

// query carries out statements that came as one text. Without BEGIN they are one transaction, too.
func (s *session) query(text string) bool {
	for _, sql := range strings.Split(text, ";") {
		if sql = strings.TrimSpace(sql); sql == "" || strings.HasPrefix(sql, "--") {
			continue
		}
		if err := s.one(sql, nil); err != nil {
			if !s.refuse(err) {
				return false
			}
			break
		}
	}
	s.ready()
	return true
}

// insert takes rows in the binary form of COPY into a table.
func (t *tx) insert(table string, b []byte) {
	for {
		n := binary.BigEndian.Uint16(b)
		b = b[2:]
		if n == 0xffff {
			return
		}
		r := row{}
		for i := range int(n) {
			size := int32(binary.BigEndian.Uint32(b))
			b = b[4:]
			if size < 0 {
				r = append(r, null)
				continue
			}
			v := string(b[:size])
			b = b[size:]
			if i < 3 {
				v = number(v)
			}
			r = append(r, v)
		}
		t.put(table, sortable(r[0]), r)
	}
}
