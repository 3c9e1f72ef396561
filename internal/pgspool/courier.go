package pgspool

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// Nodes ask each other through a table: no node needs a way to another one but the database. A row is a call. The
// node that it is for takes it, which is an update that only one can make, carries it out, and writes the answer into
// it; who asked deletes it. Whoever gives a call up that has not been taken deletes it likewise, and knows then that it is not
// carried out. NOTIFY only saves the wait until the next look, once a second.
const callTable = `CREATE TABLE IF NOT EXISTS node_call (id text PRIMARY KEY, asker text NOT NULL, node text NOT NULL, who text NOT NULL, kind integer NOT NULL,
	request bytea NOT NULL, until timestamptz NOT NULL, taken boolean NOT NULL DEFAULT false, answer bytea, failed text)`

const (
	// callChannel is that of the hints.
	callChannel = "posthaste_call"
	// maxCalls bounds the calls of one node that are in the table, and maxAttended what a node carries out at a time.
	maxCalls, maxAttended = 16, 4
	// callPoll is how often it is looked for an answer, and lookPeriod for calls.
	callPoll, lookPeriod = 50 * time.Millisecond, time.Second
	// lingerTime is how long a call that is in hand may go on when its process ends.
	lingerTime = time.Second
	// keepCall is how much longer than anybody waits a row is kept, by the database's clock.
	keepCall = storage.SlowTime + 2*storage.AnswerTime
)

// Nodes implements storage.Courier.
func (r *reader) Nodes() (list []storage.Member, err error) {
	err = r.store.ask(func(ctx context.Context, conn *pgx.Conn) error {
		rows, _ := conn.Query(ctx, `SELECT name, name = $1, seen > clock_timestamp() - make_interval(secs => $2) FROM node
			WHERE seen > clock_timestamp() - interval '1 day' ORDER BY name`, r.store.node, r.store.leaseTime().Seconds()) // its error is that of reading the rows
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[storage.Member])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", queue.ErrUnread, clean(err))
	}
	return list, nil
}

// Ask implements storage.Courier.
func (r *reader) Ask(ctx context.Context, node string, c storage.Call) ([]byte, error) {
	if len(c.Payload) > storage.CallSize || len(c.By) > storage.CallBy {
		return nil, storage.ErrNotCarriedOut("it is too long to be sent to another node")
	}
	if c.Payload == nil {
		c.Payload = []byte{} // nil would be NULL
	}
	id := rand.Text()
	var sent bool
	err := r.store.askOnce(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `INSERT INTO node_call (id, asker, node, who, kind, request, until)
				SELECT $1, $2, $3, $4, $5, $6, clock_timestamp() + make_interval(secs => $7) WHERE (SELECT count(*) FROM node_call WHERE asker = $2) < $8`,
				id, r.store.node, node, plainText(c.By), int(c.Kind), c.Payload, keepCall.Seconds(), maxCalls)
			if sent = err == nil && tag.RowsAffected() == 1; !sent {
				return err
			}
			_, err = tx.Exec(ctx, "SELECT pg_notify($1, $2)", callChannel, node)
			return err
		})
	})
	switch {
	case err == nil && !sent:
		return nil, storage.ErrNotCarriedOut("too much is being asked of other nodes: try again later")
	// A session that the server ends may have been told to while the answer to its COMMIT was on the way.
	case errors.Is(err, errNotAsked) || sqlState(err) != "" && !strings.HasPrefix(sqlState(err), classIntervention):
		return nil, storage.ErrNotCarriedOut(clean(err).Error())
	case err != nil:
		return nil, fmt.Errorf("whether it is carried out is not known: %w", clean(err))
	}
	return r.await(ctx, id, node)
}

// await waits for the answer to a call.
func (r *reader) await(ctx context.Context, id, node string) (answer []byte, err error) {
	begun, begunThere := time.Now(), time.Time{} // and when it was seen that the other node has
	t := time.NewTicker(callPoll)
	defer t.Stop()
	for lost := 0; ; {
		var taken, alive, done bool
		var failed *string
		err := r.store.ask(func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `SELECT taken, answer IS NOT NULL OR failed IS NOT NULL, answer, failed,
				coalesce((SELECT seen > clock_timestamp() - make_interval(secs => $2) FROM node WHERE name = $3), false) FROM node_call WHERE id = $1`,
				id, r.store.leaseTime().Seconds(), node).Scan(&taken, &done, &answer, &failed, &alive)
		})
		waited := time.Since(begun)
		if taken {
			if begunThere.IsZero() {
				begunThere = time.Now()
			}
			waited = time.Since(begunThere) // it has AnswerTime from then on
		}
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil, errors.New("the call has been deleted: whether it is carried out is not known")
		case err != nil:
			if lost++; lost > 3 {
				return nil, fmt.Errorf("whether it is carried out is not known: %w", clean(err))
			}
		case done:
			r.store.forget(id, true)
			if failed != nil {
				return nil, errors.New(*failed)
			}
			return answer, nil
		case !taken && (waited > storage.CallTime && !alive || waited > storage.SlowTime || ctx.Err() != nil):
			if r.store.forget(id, false) {
				return nil, storage.ErrNotCarriedOut("it does not answer")
			}
		case taken && (!alive || waited > storage.AnswerTime || ctx.Err() != nil):
			return nil, errors.New("it has begun, and does not answer any more: whether it is carried out is not known")
		}
		select {
		case <-t.C:
		case <-ctx.Done(): // the row says what becomes of it
			<-t.C
		}
	}
}

// forget deletes a call of ours. Unless it was taken, nobody carries it out then. It is false when nothing was deleted, or nobody knows.
func (s *Store) forget(id string, taken bool) (did bool) {
	err := s.askOnce(context.Background(), func(ctx context.Context, conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, "DELETE FROM node_call WHERE id = $1 AND taken = $2", id, taken)
		did = err == nil && tag.RowsAffected() == 1
		return err
	})
	return did && err == nil
}

// errNotAsked says that the database was not reached.
var errNotAsked = errors.New("the database cannot be asked")

// askOnce is ask for what must not be repeated when nobody knows what came of it.
func (s *Store) askOnce(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	pool, err := s.readers()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTime)
	defer cancel()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotAsked, clean(err))
	}
	defer conn.Release()
	return f(ctx, conn.Conn())
}

// Attend implements storage.Courier.
func (r *reader) Attend(ctx context.Context, f func(context.Context, storage.Call) ([]byte, error), warn func(string, ...any)) {
	var working sync.WaitGroup
	defer working.Wait()
	a := &attending{store: r.store, f: f, working: &working, room: make(chan struct{}, maxAttended)}
	for said := false; ctx.Err() == nil; {
		err := a.listen(ctx, func() { said = false })
		if err != nil && ctx.Err() == nil && !said {
			said = true
			warn("what other nodes ask of this one is not heard: %v", clean(err))
		}
		select {
		case <-time.After(lookPeriod):
		case <-ctx.Done():
		}
	}
}

// An attending is the answering side.
type attending struct {
	store   *Store
	f       func(context.Context, storage.Call) ([]byte, error)
	working *sync.WaitGroup
	room    chan struct{} // holds one for each call that is carried out
}

// listen takes calls until the connection breaks or ctx ends. well is called when it works.
func (a *attending) listen(ctx context.Context, well func()) error {
	conn, err := a.store.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	if err := addTables(ctx, conn); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+callChannel); err != nil {
		return err
	}
	for {
		if err := a.look(ctx, conn); err != nil {
			return err
		}
		well()
		a.store.views.sweep()
		waiting, cancel := context.WithTimeout(ctx, lookPeriod)
		_, err := conn.WaitForNotification(waiting)
		cancel()
		if ctx.Err() != nil || conn.IsClosed() {
			return err
		}
	}
}

// look takes what is there, and has it carried out.
func (a *attending) look(ctx context.Context, conn *pgx.Conn) error {
	limited, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	if _, err := conn.Exec(limited, "DELETE FROM node_call WHERE until < clock_timestamp()"); err != nil {
		return err
	}
	for {
		select {
		case a.room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		default:
			return nil // what is there waits
		}
		id, c, err := a.take(limited, conn)
		if err != nil || id == "" {
			<-a.room
			return err
		}
		a.working.Go(func() {
			defer func() { <-a.room }()
			a.carryOut(ctx, id, c)
		})
	}
}

// take takes one call; "": there is none. Whoever asks may give it up at the same time, and another process of this node may take
// it: then there is no row to update.
func (a *attending) take(ctx context.Context, conn *pgx.Conn) (id string, c storage.Call, err error) {
	var kind int
	sql := `UPDATE node_call SET taken = true WHERE NOT taken AND until > clock_timestamp() AND id =
		(SELECT id FROM node_call WHERE node = $1 AND NOT taken AND until > clock_timestamp() ORDER BY until LIMIT 1)
		RETURNING id, asker, who, kind, request`
	if a.store.plant.twice {
		sql = strings.Replace(sql, "true", "false", 1)
	}
	err = conn.QueryRow(ctx, sql, a.store.node).Scan(&id, &c.From, &c.By, &kind, &c.Payload)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", c, nil
	}
	c.Kind = uint16(kind)
	return id, c, err
}

// carryOut carries a call out, and writes the answer. If that cannot be written, who asked is told that it is not known.
func (a *attending) carryOut(ctx context.Context, id string, c storage.Call) {
	// A process that ends, at a reload, answers what it has begun with: whoever has asked would not know else whether it is done.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), storage.AnswerTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(lingerTime):
			cancel()
		case <-limited.Done():
		}
	})()
	answer, err := a.f(limited, c)
	if errors.Is(err, storage.ErrAgain) {
		_ = a.store.askOnce(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "UPDATE node_call SET taken = false WHERE id = $1", id)
			return err
		})
		return
	}
	var failed *string
	switch {
	case err != nil:
		text := plainText(err.Error())
		answer, failed = nil, &text
	case len(answer) > storage.AnswerSize:
		text := "it was carried out; the answer is too long to be sent"
		answer, failed = nil, &text
	case answer == nil:
		answer = []byte{}
	}
	_ = a.store.askOnce(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "UPDATE node_call SET answer = $2, failed = $3 WHERE id = $1", id, answer, failed)
		return err
	})
}
