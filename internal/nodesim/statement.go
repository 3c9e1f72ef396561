package nodesim

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// A result is what a statement returns: rows, of columns of these types.
type result struct {
	types string // a letter for each column: b bool, i integer, t text, x bytea, z timestamptz
	rows  []row
	tag   string
}

var oids = map[byte]uint32{'b': 16, 'i': 20, 't': 25, 'x': 17, 'z': 1184}

// A statement is one that package pgspool sends: its beginning, in which a word of capitals between braces stands for
// anything, and what it does. Arguments are those of the text, if it has any in its place, and then those beside it.
type statement struct {
	text string
	do   func(t *tx, a []string) (result, error)
}

// one carries out a statement, and answers but for the end.
func (s *session) one(sql string, args []string) error {
	verb, _, _ := strings.Cut(sql, " ")
	switch verb = strings.ToUpper(strings.TrimSpace(verb)); verb {
	case "BEGIN":
		// Within a transaction it is but a warning, and that goes on.
		if s.t != nil && s.failed {
			return &pgError{"25P02", "current transaction is aborted"}
		}
		if s.t == nil {
			s.t, s.failed = &tx{s: s, changes: map[cell]row{}}, false
		}
		s.send(&pgproto3.CommandComplete{CommandTag: []byte("BEGIN")})
		return nil
	case "COMMIT", "ROLLBACK":
		return s.end(verb == "COMMIT")
	}
	if s.t != nil && s.failed {
		return &pgError{"25P02", "current transaction is aborted"}
	}
	t := s.t
	if t == nil {
		t = &tx{s: s, changes: map[cell]row{}}
	}
	r, err := t.carryOut(sql, args)
	if s.t == nil {
		if err == nil {
			err = t.commit()
		} else {
			s.host.mu.Lock()
			t.release()
			s.host.mu.Unlock()
		}
	}
	if err != nil {
		return err
	}
	s.result(&r)
	return nil
}

// end ends the transaction.
func (s *session) end(commit bool) error {
	t, tag := s.t, "ROLLBACK"
	if t == nil {
		s.send(&pgproto3.CommandComplete{CommandTag: []byte("COMMIT")})
		return nil
	}
	if commit && !s.failed {
		lost, committed := s.host.lost(s.node)
		if lost && !committed {
			return errGone
		}
		s.t = nil
		if err := t.commit(); err != nil {
			return err
		}
		if lost {
			return errGone
		}
		tag = "COMMIT"
	} else {
		s.host.mu.Lock()
		s.t = nil
		t.release()
		s.host.mu.Unlock()
	}
	s.send(&pgproto3.CommandComplete{CommandTag: []byte(tag)})
	return nil
}

// result sends what a statement returns.
func (s *session) result(r *result) {
	if r.types == "" {
		if r.tag == "" {
			r.tag = "UPDATE 1"
		}
		s.send(&pgproto3.CommandComplete{CommandTag: []byte(r.tag)})
		return
	}
	d := &pgproto3.RowDescription{}
	for i := range len(r.types) {
		d.Fields = append(d.Fields, pgproto3.FieldDescription{Name: []byte{'c'}, DataTypeOID: oids[r.types[i]], DataTypeSize: -1, TypeModifier: -1})
	}
	s.send(d)
	for _, row := range r.rows {
		m := &pgproto3.DataRow{}
		for i, v := range row {
			switch {
			case v == null:
				m.Values = append(m.Values, nil)
			case r.types[i] == 'x':
				m.Values = append(m.Values, []byte(`\x`+hex.EncodeToString([]byte(v))))
			default:
				m.Values = append(m.Values, []byte(v))
			}
		}
		s.send(m)
	}
	s.send(&pgproto3.CommandComplete{CommandTag: fmt.Appendf(nil, "SELECT %d", len(r.rows))})
}

// values are the strings, the numbers and the tables of segments in a text, in their order.
func values(text string) (list []string) {
	for i := 0; i < len(text); {
		n := 1
		switch c := text[i]; {
		case c == '\'':
			n = 2 + strings.IndexByte(text[i+1:], '\'')
			list = append(list, text[i+1:i+n-1])
		case c == '$':
			n += digits(text[i+1:]) // an argument, which is beside the text
		case c >= '0' && c <= '9':
			n = digits(text[i:])
			list = append(list, text[i:i+n])
		case strings.HasPrefix(text[i:], "seg_"):
			n = 4 + digits(text[i+4:])
			n += 1 + digits(text[i+n+1:])
			list = append(list, text[i:i+n])
		}
		i += n
	}
	return list
}

// digits is how many text begins with.
func digits(text string) (n int) {
	for n < len(text) && text[n] >= '0' && text[n] <= '9' {
		n++
	}
	return n
}

// carryOut finds the statement, and does it.
func (t *tx) carryOut(sql string, args []string) (result, error) {
	h := t.s.host
	if h.run.plan.Trace {
		shown := args
		if strings.Contains(sql, "node_call") {
			shown = nil // their names are nobody's to predict
		}
		h.run.step("session %d of %s: %s %q", t.s.number, t.s.node, sql, shown)
	}
	text := sql
	if strings.ContainsAny(sql, "\n\t") {
		text = strings.Join(strings.Fields(sql), " ")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range statements {
		st := &statements[i]
		if !strings.HasPrefix(text, st.text) {
			continue
		}
		a := values(text[len(st.text):])
		if !h.up || t.s.over {
			return result{}, errGone
		}
		if h.full && needsRoom(text) && t.s.rnd.IntN(4) > 0 {
			return result{}, &pgError{"53100", "could not extend file: No space left on device"}
		}
		if len(args) > 0 {
			return st.do(t, append(args[:len(args):len(args)], a...))
		}
		return st.do(t, a)
	}
	return result{}, &pgError{"XX000", "the model of the database does not know this statement: " + text}
}

// needsRoom says whether a statement fails when the disk is full: mostly, since there may be room in the tables.
func needsRoom(text string) bool {
	for _, verb := range []string{"COPY", "INSERT", "CREATE", "UPDATE"} {
		if strings.HasPrefix(text, verb) {
			return true
		}
	}
	return false
}

// number is the text of an integer in binary.
func number(b string) string {
	var n int64
	switch len(b) {
	case 2:
		n = int64(int16(binary.BigEndian.Uint16([]byte(b))))
	case 8:
		n = int64(binary.BigEndian.Uint64([]byte(b)))
	}
	return strconv.FormatInt(n, 10)
}

// sortable is an integer as a key.
func sortable(n string) string { return fmt.Sprintf("%020s", n) }

func atoi(s string) int64 {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return math.MinInt64
	}
	return int64(n)
}

func truth(b bool) string {
	if b {
		return "t"
	}
	return "f"
}

// list are the elements of an array.
func list(text string) (l []string) {
	for _, v := range strings.Split(strings.Trim(text, "{}"), ",") {
		if v != "" {
			l = append(l, strings.Trim(v, `"`))
		}
	}
	return l
}

// fixed returns a value, whatever is asked.
func fixed(types string, r ...string) func(*tx, []string) (result, error) {
	return func(*tx, []string) (result, error) { return result{types: types, rows: []row{r}}, nil }
}

// nothing has no effect that matters here.
func nothing(*tx, []string) (result, error) { return result{}, nil }

// alter locks a row and changes a copy of it; false: there is none.
func (t *tx) alter(table, key string, f func(row)) (bool, error) {
	if t.get(table, key) == nil {
		return false, nil
	}
	if err := t.lock(table, key, true); err != nil {
		return false, err
	}
	r := slices.Clone(t.get(table, key))
	if r == nil {
		return false, nil
	}
	f(r)
	t.put(table, key, r)
	return true, nil
}

// set makes a row, or changes it; keep leaves one that is there as it is.
func (t *tx) set(table, key string, r row, keep bool) error {
	if err := t.lock(table, key, true); err != nil {
		return err
	}
	if !keep || t.get(table, key) == nil {
		t.put(table, key, r)
	}
	return nil
}

// remove deletes the rows that f wants to go.
func (t *tx) remove(table string, f func(row) bool) error {
	for _, k := range t.keys(table) {
		if !f(t.get(table, k)) {
			continue
		}
		if err := t.lock(table, k, true); err != nil {
			return err
		}
		if r := t.get(table, k); r != nil && f(r) {
			t.put(table, k, nil)
		}
	}
	return nil
}
