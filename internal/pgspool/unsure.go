package pgspool

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
)

// A record that is left out may have said that a recipient has got the message, or that an agent had it in hand. So a message may be delivered
// twice of which a record is lost. When it is not known whose a lost record was, or its checksum is wrong, it may have been that of any message whose state is older: what is
// newer than the lost record has all that the lost one said. These deliveries are named as doubtful, too, before they are made again.

const (
	// maxUnsure bounds the deliveries of a shard that are named one by one because of lost records. With more, one row of the table
	// doubtful stands for the others.
	maxUnsure = 100_000
	// anyMessage is the ID in that row: any message of the shard. Its recipient is the shard's number.
	anyMessage = "*"
	// lostRecords is in such rows instead of the next host.
	lostRecords = "(records are lost)"
)

// maxUnsure is that, but in a test.
func (s *Store) maxUnsure() int { return cmp.Or(s.unsure, maxUnsure) }

// An unsure is what may be delivered twice because of records that are left out. It belongs to the reading.
type unsure struct {
	all  bool            // a record is lost, and nobody knows whose: the messages are meant whose state has not been read by then
	of   map[uint64]bool // a record of these messages is lost
	page []uint64        // those of the messages that have been read and not given out

	named int  // recipients that have been named
	told  int  // of the messages that cleanup is told of
	over  bool // there are more, and the row that stands for them is written
}

// lose notes that a record of a message is left out.
func (u *unsure) lose(number uint64) {
	if u.of == nil {
		u.of = map[uint64]bool{}
	}
	u.of[number] = true
}

// found notes that the state of a message has been read.
func (u *unsure) found(number uint64) {
	if u.all || u.of[number] {
		u.page = append(u.page, number)
		delete(u.of, number)
	}
}

// lostRow notes what is known of a row that the database does not give: it may give the columns that say what it is. That a message has ended is
// not believed, since nothing vouches for what they say.
func (r *reading) lostRow(ctx context.Context, conn *pgx.Conn, s *segment, pos int64, g *gap) error {
	var kind uint8
	var number uint64
	err := conn.QueryRow(ctx, "SELECT kind, number FROM "+segmentTable(r.t.id, s.segno)+" WHERE pos = $1", pos).Scan(&kind, &number)
	switch {
	case isDamage(err), errors.Is(err, pgx.ErrNoRows):
		g.all = g.all || !r.unsure.all
		r.unsure.all = true
	case err != nil:
		return err
	case kind == rowPART, r.isKnown(number), r.unsure.of[number]:
	default:
		g.of = append(g.of, number)
		r.unsure.lose(number)
	}
	return nil
}

// restore takes back what the rows of a gap have put in doubt: they are read once more. No message has been read since the gap began.
func (u *unsure) restore(g *gap) {
	u.all = u.all && !g.all
	for _, number := range g.of {
		delete(u.of, number)
	}
}

// doubts lists the deliveries that may be repeated because of lost records, of the messages that are given out next. over says that there are more
// than are named.
func (r *reading) doubts(a *adoption) (list []queue.Doubt, over bool) {
	u := &r.unsure
	slices.Sort(u.page)
	n := u.named
	for _, number := range u.page {
		l := a.idx.find(number)
		d := queue.Doubt{ID: l.id(), Kind: queue.DoubtLost, At: time.UnixMicro(l.created)}
		named := map[uint32]bool{}
		for _, h := range a.idx.handed[number] {
			for _, i := range h.Rcpts {
				named[i] = h.Reported
			}
		}
		for i := range l.nrcpt {
			if !isDone(l, a.idx.more[number], uint64(i)) && !named[i] {
				d.Rcpts = append(d.Rcpts, int(i))
			}
		}
		if n += len(d.Rcpts); n > r.e.store.maxUnsure() {
			return list, true
		}
		if len(d.Rcpts) > 0 {
			list = append(list, d)
		}
	}
	return list, false
}

// noteUnsure is noteDoubt for doubt and for what is lost besides, and has cleanup told of what was not in the table before.
func (r *reading) noteUnsure(ctx context.Context, conn *pgx.Conn, doubt []queue.Doubt, a *adoption) error {
	u := &r.unsure
	lost, over := r.doubts(a)
	all := slices.Concat(doubt, lost)
	if over = over && !u.over; over {
		all = append(all, queue.Doubt{ID: mail.QueueID(anyMessage), Kind: queue.DoubtLost, Rcpts: []int{int(r.t.id)}, At: r.began})
	}
	if len(all) == 0 && !a.last {
		u.page = nil
		return nil
	}
	if len(lost) > 0 {
		r.e.store.setUntold(r.t.id, true)
	}
	news, err := r.e.store.noteDoubt(ctx, conn, all, r.t)
	if err != nil {
		r.untold = true // it may be in the table nevertheless
		return err
	}
	for i := range lost {
		u.named += len(lost[i].Rcpts)
		switch {
		case !news[len(doubt)+i] && !r.untold: // an earlier reading has found the same
		case u.told < maxInDoubt:
			u.told++
			a.found.InDoubt = append(a.found.InDoubt, lost[i])
		default:
			a.found.MoreInDoubt++
		}
	}
	if u.page = nil; over {
		u.named, u.over = r.e.store.maxUnsure(), true
		r.damaged("part %d of the queue: records of it are lost, and more of its mail may be delivered twice than is named one by one", r.t.id)
	}
	return nil
}
