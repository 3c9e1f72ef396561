package pgspool

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"posthaste/internal/pack"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// Open implements storage.Store: it takes what shards are free, and reads their records.
func (s *Store) Open(ctx context.Context, o storage.Options) (storage.Engine, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	e, err := s.open(ctx, conn, o)
	if err != nil {
		lost := conn.IsClosed()
		conn.Close(context.Background())
		return nil, openError(err, lost)
	}
	return e, nil
}

// openError sorts what can go wrong. What the database says may pass, save what our own tables lack, and so does
// it that the connection is lost.
func openError(err error, lost bool) error {
	if sqlState(err) == "" && !lost && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", queue.ErrBroken, clean(err))
}

func (s *Store) open(ctx context.Context, conn *pgx.Conn, o storage.Options) (*engine, error) {
	if err := checkSchema(ctx, conn); err != nil {
		return nil, err
	}
	if !s.older {
		if err := addTables(ctx, conn); err != nil {
			return nil, err
		}
	}
	if err := s.register(ctx, conn); err != nil {
		return nil, err
	}
	sh, err := s.share(ctx, conn)
	if err != nil {
		return nil, err
	}
	if sh.drained {
		return nil, fmt.Errorf("%w: this node is drained (posthaste cluster undrain)", queue.ErrNotOurs)
	}
	began, shards, err := s.takeFirst(ctx, conn, sh.most)
	if err != nil {
		return nil, err
	}
	if len(shards) == 0 {
		return nil, fmt.Errorf("%w: %s", queue.ErrNotOurs, s.whoHasIt(ctx, conn))
	}
	// A node that stands by tries again each second, and is not to say it each time.
	if err := warnUnsafe(ctx, conn, o.Warn); err != nil {
		return nil, err
	}
	if err := s.releaseLeft(ctx, conn); err != nil {
		return nil, err
	}
	e := &engine{store: s, opt: o, idx: newIndex(), lease: &lease{renewed: began, lasts: s.leaseTime(), margin: s.margin()}, shards: map[uint32]*shard{}, coming: map[uint32]*shard{}, wake: make(chan struct{}, 1),
		broken: make(chan struct{}), born: time.Now(), conn: conn}
	for _, t := range shards {
		e.coming[t.id] = &t.shard
	}
	renewing, stop := context.WithCancel(context.Background())
	e.stop = stop
	// Reading may take longer than the lease.
	e.ended.Go(func() { e.renew(renewing) })
	rest, err := e.readFirst(ctx, conn, shards)
	if err != nil {
		stop()
		e.abandon(err)
		return nil, err
	}
	s.opened(shards, e.whole())
	if len(rest) > 0 {
		e.ended.Go(func() { e.adoptAll(renewing, rest) })
	}
	e.ended.Go(func() {
		e.commit()
		stop()
	})
	return e, nil
}

// takeFirst takes shards for an engine that is not open yet: all that were this node's, however long commits take. Agents speak of their
// mail as soon as the queue is open, and what they say of mail that is not there is lost. The leases are good from renewed on.
func (s *Store) takeFirst(ctx context.Context, conn *pgx.Conn, most int) (renewed time.Time, list []*taken, err error) {
	renewed = time.Now()
	list, err = s.takeFree(ctx, conn, most, nil)
	// takeFree stops when the first leases are to be renewed, and its own shards come first.
	for began := renewed; err == nil && len(list) > 0 && len(list) < most && list[len(list)-1].own && time.Since(began) > s.takeFor(); {
		have := make([]*shard, len(list))
		for i, t := range list {
			have[i] = &t.shard
		}
		began = time.Now()
		if err = s.renewLeases(ctx, conn, have); err != nil {
			break
		}
		renewed = began
		var more []*taken
		if more, err = s.takeFree(ctx, conn, most, have); len(more) == 0 {
			break
		}
		list = append(list, more...)
	}
	return renewed, list, err
}

// abandon ends an engine that has no committer. Shards that the renewer has had read meanwhile are waiting for it.
func (e *engine) abandon(err error) {
	e.fail(err)
	e.giveUp(nil, err)
	e.ended.Wait()
}

// warnUnsafe tells of settings of the server with which what it has acknowledged may be lost. The engine cannot
// change them.
func warnUnsafe(ctx context.Context, conn *pgx.Conn, warn func(string, ...any)) error {
	for _, name := range []string{"fsync", "full_page_writes"} {
		var value string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
			return err
		}
		if value == "off" {
			warn("spool: the database server has %s = off: mail may be lost when it loses its power", name)
		}
	}
	return nil
}

// whoHasIt names the owners, for people.
func (s *Store) whoHasIt(ctx context.Context, conn *pgx.Conn) string {
	rows, _ := conn.Query(ctx, "SELECT DISTINCT node FROM shard WHERE node IS NOT NULL ORDER BY node") // its error is that of reading the rows
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return clean(err).Error()
	}
	return strings.Join(names, ", ") + " has it"
}

// doubtfulTime is how long a takeover's list is kept.
const doubtfulTime = "30 days"

// noteDoubt writes what is in doubt of a shard to the table that every node can list, in the transaction that checks that the
// shard is still this node's. It says which of the list had not been there.
func (s *Store) noteDoubt(ctx context.Context, conn *pgx.Conn, list []queue.Doubt, t *taken) (news []bool, err error) {
	news = make([]bool, len(list))
	return news, s.transact(ctx, conn, []*shard{&t.shard}, func() error {
		var b pgx.Batch
		b.Queue("DELETE FROM doubtful WHERE found < clock_timestamp() - interval '" + doubtfulTime + "'")
		for i := range list {
			h := &list[i]
			to := h.Nexthop
			if h.Kind == queue.DoubtLost {
				to = lostRecords
			}
			for _, i := range h.Rcpts {
				// The same delivery is found again when a shard is read once more from the beginning.
				b.Queue(`INSERT INTO doubtful SELECT $1, $2, $3, $4, clock_timestamp(), $5, $6, $7, nullif($8, '')
					WHERE NOT EXISTS (SELECT FROM doubtful WHERE id = $1 AND recipient = $2 AND (handed = $4 OR id = $9)) ON CONFLICT DO NOTHING`,
					string(h.ID), i, plainText(to), h.At, int(t.id), t.epoch, s.node, t.from, anyMessage)
			}
		}
		results := conn.SendBatch(ctx, &b)
		_, err := results.Exec()
		for i := range list {
			for range list[i].Rcpts {
				if err == nil {
					var tag pgconn.CommandTag
					tag, err = results.Exec()
					news[i] = news[i] || tag.RowsAffected() > 0
				}
			}
		}
		return errors.Join(err, results.Close())
	})
}

// plainText is text for a column of type text, whatever the encoding of the database: an octet that it refuses
// would keep the queue from being opened. What is not printable ASCII is written as in Go.
func plainText(s string) string {
	q := strconv.QuoteToASCII(s)
	return q[1 : len(q)-1]
}

// A replay makes an index say what records say, in their order.
type replay struct {
	warn    func(format string, args ...any)
	idx     index
	records int
	damage  []string // for people
}

// maxDamage bounds the lines of damage.
const maxDamage = 100

func (rp *replay) damaged(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	rp.warn("spool: %s", text)
	if len(rp.damage) < maxDamage {
		rp.damage = append(rp.damage, text)
	}
}

// rowOverhead is what a row of COPY has beside its fields' octets: the same as rows.add counts.
const rowOverhead = 2 + 4 + 8 + 4 + 2 + 4 + 8 + 3*4

// apply makes the index say what a record says.
func (rp *replay) apply(sh *shard, s *segment, r *row, n uint32) {
	x := &rp.idx
	head, err := openHead(r.head, r.kind, r.number)
	if err == nil && r.kind == rowGONE {
		x.remove(r.number)
		return
	}
	if err == nil && (r.kind == rowMSG || r.kind == rowSTATE) {
		err = rp.state(sh, s, r, head, n)
	} else if l := x.find(r.number); err == nil && l != nil {
		err = rp.change(l, r.kind, head, s.segno)
	}
	if err != nil {
		rp.damaged("%s, position %d: the record of message number %d is left out: %v", segmentTable(sh.id, s.segno), r.pos, r.number, err)
	}
}

func (rp *replay) state(sh *shard, s *segment, r *row, head []byte, n uint32) error {
	st, err := decodeState(head, r.number, s.segno, uint32(r.pos))
	if err != nil {
		return err
	}
	l := &st.live
	l.shard, l.refLen = sh.id, n
	if r.kind == rowMSG {
		l.msgLen = n
	}
	more := loadDone(l, st.done)
	var big *place
	if st.big.parts > 0 {
		big = &st.big
	} else if r.kind == rowSTATE {
		big = rp.idx.bigOf(r.number)
	}
	rp.idx.remove(r.number)
	rp.idx.put(l)
	rp.idx.setBeside(r.number, more, big, pending(st.handed, l, more))
	return nil
}

// change applies DONE and HANDED.
func (rp *replay) change(l *live, kind uint8, head []byte, segno uint32) error {
	x := &rp.idx
	more, handed := x.more[l.number], x.handed[l.number]
	l.last = segno
	switch kind {
	case rowDONE:
		if err := eachRcpt(head, func(i uint64) {
			if i < uint64(l.nrcpt) {
				more = setDone(l, more, i)
			}
		}); err != nil {
			return err
		}
		handed = pending(handed, l, more)
	case rowHANDED:
		r := pack.NewReader(head)
		for r.Next() {
			h, err := queue.DecodeHanding(r.Bytes())
			if err != nil {
				return err
			}
			handed = pending(queue.HandOut(handed, h), l, more)
		}
	default:
		return fmt.Errorf("%w: kind %d is not known", queue.ErrCorrupt, kind)
	}
	x.setBeside(l.number, more, nil, handed)
	return nil
}
