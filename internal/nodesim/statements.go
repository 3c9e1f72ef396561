package nodesim

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/nodeshare"
)

// seconds is a time in µs from now on, by the host's clock.
func (t *tx) seconds(s string) string {
	f, _ := strconv.ParseFloat(s, 64)
	return fmt.Sprint(t.s.host.now() + int64(f*1e6))
}

// later says whether a time has not come yet.
func (t *tx) later(until string) bool { return atoi(until) > t.s.host.now() }

// Columns: node name instance seen drained; shard id node epoch; lease shard until; segment shard segno epoch; doubtful id
// recipient epoch shard node lost_by handed; closed shard epoch; node_share node until alone; node_version node until sharing; limit_share node key share demand;
// node_order number asker node shard who what open kind request; node_call id asker node who kind request until taken answer failed; node_note node topic until note; class: tables that an
// older version does not make; seg_S_N pos kind number head rest body.
var statements = []statement{
	{"show transaction_read_only", func(t *tx, _ []string) (result, error) {
		return result{types: "t", rows: []row{{map[bool]string{true: "off", false: "on"}[t.s.host.primary]}}}, nil
	}},
	{"SELECT number FROM version FOR UPDATE", func(t *tx, _ []string) (result, error) {
		return result{types: "i", rows: []row{{"1"}}}, t.lock("version", "1", true)
	}},
	{"SELECT number FROM version", fixed("i", "1")},
	{"SELECT to_regclass(", func(t *tx, a []string) (result, error) {
		late := a[0] == "node_note" || a[0] == "node_call" || a[0] == "node_order"
		return result{types: "b", rows: []row{{truth(!late || t.get("class", a[0]) != nil)}}}, nil
	}},
	{"SELECT current_setting(", fixed("t", "on")},
	{"DELETE FROM node_setting", nothing},
	{"INSERT INTO node_setting", nothing},
	{"DELETE FROM doubtful", nothing},
	{"CREATE TABLE IF NOT EXISTS node_note", func(t *tx, _ []string) (result, error) { return t.create("node_note") }},
	{"CREATE TABLE IF NOT EXISTS node_call", func(t *tx, _ []string) (result, error) { return t.create("node_call") }},
	{"CREATE TABLE IF NOT EXISTS node_order", func(t *tx, _ []string) (result, error) { return t.create("node_order") }},
	{"CREATE TABLE", nothing},
	{"ALTER TABLE", nothing},
	{"SET LOCAL lock_timeout =", func(t *tx, a []string) (result, error) {
		t.patient = time.Duration(atoi(a[0])) * time.Millisecond
		return result{tag: "SET"}, nil
	}},
	{"SET LOCAL idle_in_transaction_session_timeout =", func(t *tx, a []string) (result, error) {
		t.idle = time.Duration(atoi(a[0])) * time.Millisecond
		return result{tag: "SET"}, nil
	}},
	{"SET LOCAL synchronous_commit TO off", func(t *tx, _ []string) (result, error) {
		t.async = true
		return result{tag: "SET"}, nil
	}},
	{"SET LOCAL synchronous_commit TO on", func(*tx, []string) (result, error) { return result{tag: "SET"}, nil }},

	{"INSERT INTO node VALUES", func(t *tx, a []string) (result, error) {
		return result{}, t.set("node", a[0], row{a[0], a[1], t.seconds("0"), "f"}, true)
	}},
	{"SELECT instance, seen >", func(t *tx, a []string) (result, error) {
		if err := t.lock("node", a[0], true); err != nil {
			return result{}, err
		}
		r := t.get("node", a[0])
		return result{types: "tb", rows: []row{{r[1], truth(atoi(r[2]) > t.s.host.now()-10e6)}}}, nil
	}},
	{"UPDATE node SET instance", func(t *tx, a []string) (result, error) {
		_, err := t.alter("node", a[0], func(r row) { r[1], r[2] = a[1], t.seconds("0") })
		return result{}, err
	}},
	{"UPDATE node SET seen", func(t *tx, a []string) (result, error) {
		_, err := t.alter("node", a[0], func(r row) { r[2] = t.seconds("0") })
		return result{}, err
	}},
	{"UPDATE node SET drained", func(t *tx, a []string) (result, error) {
		_, err := t.alter("node", a[0], func(r row) { r[3] = a[1][:1] })
		return result{}, err
	}},
	{"SELECT (SELECT count(*) FROM shard), count(*) FILTER", doShare},

	{"SELECT id FROM shard JOIN lease", func(t *tx, a []string) (result, error) {
		var own, free []row
		for _, k := range t.keys("shard") {
			switch r := t.get("shard", k); {
			case r[1] == a[0]:
				own = append(own, row{k})
			case r[1] == null || !t.later(t.get("lease", k)[1]):
				free = append(free, row{k})
			}
		}
		return result{types: "i", rows: append(own, free...)}, nil
	}},
	{"SELECT coalesce(node, ''), epoch FROM shard", func(t *tx, a []string) (result, error) {
		if err := t.lock("shard", a[0], true); err != nil {
			return result{}, err
		}
		r := t.get("shard", a[0])
		return result{types: "ti", rows: []row{{strings.Trim(r[1], null), r[2]}}}, nil
	}},
	{"SELECT until < clock_timestamp() FROM lease", func(t *tx, a []string) (result, error) {
		return result{types: "b", rows: []row{{truth(!t.later(t.get("lease", a[0])[1]))}}}, nil
	}},
	{"SELECT EXISTS (SELECT FROM closed", func(t *tx, a []string) (result, error) {
		r := t.get("closed", a[0])
		return result{types: "b", rows: []row{{truth(r != nil && r[1] == a[1])}}}, nil
	}},
	{"UPDATE shard SET node = $2, epoch = epoch + 1", func(t *tx, a []string) (result, error) {
		_, err := t.alter("shard", a[0], func(r row) { r[1], r[2] = a[1], fmt.Sprint(atoi(r[2])+1) })
		return result{}, err
	}},
	{"UPDATE lease SET until = clock_timestamp() + make_interval(", func(t *tx, a []string) (result, error) {
		_, err := t.alter("lease", a[0], func(r row) { r[1] = t.seconds(a[1]) })
		return result{}, err
	}},
	{"UPDATE lease SET until = clock_timestamp() + interval ", func(t *tx, a []string) (result, error) {
		ms, _, _ := strings.Cut(a[0], " ")
		for _, id := range a[1:] {
			if _, err := t.alter("lease", id, func(r row) { r[1] = fmt.Sprint(t.s.host.now() + atoi(ms)*1000) }); err != nil {
				return result{}, err
			}
		}
		return result{}, nil
	}},
	{"SELECT pg_terminate_backend(pid)", doTerminate},
	{"SELECT DISTINCT node FROM shard", func(t *tx, _ []string) (r result, err error) {
		r.types = "t"
		for _, k := range t.keys("shard") {
			if n := t.get("shard", k)[1]; n != null && !slices.ContainsFunc(r.rows, func(x row) bool { return x[0] == n }) {
				r.rows = append(r.rows, row{n})
			}
		}
		return r, nil
	}},
	{"SET LOCAL plan_cache_mode =", nothing},
	{"SET LOCAL enable_", nothing},
	{"SELECT id FROM shard WHERE node =", doClaim},
	{"UPDATE shard SET node = NULL WHERE id =", func(t *tx, a []string) (result, error) {
		_, err := t.alter("shard", a[0], func(r row) { r[1] = null })
		return result{}, err
	}},
	{"UPDATE lease SET until = '-infinity' WHERE shard =", func(t *tx, a []string) (result, error) {
		_, err := t.alter("lease", a[0], func(r row) { r[1] = "-1" })
		return result{}, err
	}},
	{"INSERT INTO closed VALUES (", func(t *tx, a []string) (result, error) {
		return result{}, t.set("closed", a[0], row{a[0], a[1]}, false)
	}},

	{"INSERT INTO segment VALUES (", func(t *tx, a []string) (result, error) {
		return result{}, t.set("segment", a[0]+"_"+sortable(a[1]), row{a[0], a[1], a[2]}, false)
	}},
	{"SELECT segno FROM segment WHERE shard =", func(t *tx, a []string) (r result, err error) {
		r.types = "i"
		for _, k := range t.keys("segment") {
			if s := t.get("segment", k); s[0] == a[0] {
				r.rows = append(r.rows, row{s[1]})
			}
		}
		return r, nil
	}},
	{"SELECT kind, number, pos, head, coalesce(octet_length(rest), 0)", func(t *tx, a []string) (r result, err error) {
		r.types = "iiixii"
		table := segmentOf(a)
		for _, k := range slices.Backward(t.keys(table)) {
			if s := t.get(table, k); atoi(s[0]) < atoi(a[0]) && len(r.rows) < int(atoi(a[1])) {
				r.rows = append(r.rows, row{s[1], s[2], s[0], s[3], fmt.Sprint(len(strings.Trim(s[4], null))), fmt.Sprint(len(s[5]))})
			}
		}
		return r, nil
	}},
	{"SELECT count(*), coalesce(sum(pos), 0) FROM ", func(t *tx, a []string) (result, error) {
		sum := int64(0)
		keys := t.keys(segmentOf(a))
		for _, k := range keys {
			sum += atoi(k)
		}
		return result{types: "ii", rows: []row{{fmt.Sprint(len(keys)), fmt.Sprint(sum)}}}, nil
	}},
	{"SELECT pos, kind, number, head, coalesce(rest, '')", func(t *tx, a []string) (r result, err error) {
		r.types = "iiixx"
		table := segmentOf(a)
		for _, pos := range list(a[0]) {
			if s := t.get(table, sortable(pos)); s != nil {
				r.rows = append(r.rows, row{s[0], s[1], s[2], s[3], s[4]})
			}
		}
		return r, nil
	}},
	{"COPY ", func(t *tx, a []string) (result, error) {
		b, err := hex.DecodeString(a[0])
		if err == nil && t.claims != nil {
			t.insert(a[1], b[copyHead:])
		}
		return result{tag: "COPY 1"}, err
	}},
	{"INSERT INTO doubtful SELECT", func(t *tx, a []string) (result, error) {
		for _, k := range t.keys("doubtful") {
			if r := t.get("doubtful", k); r[0] == a[0] && r[1] == a[1] && r[6] == a[3] {
				return result{}, nil
			}
		}
		return result{}, t.set("doubtful", a[0]+" "+a[1]+" "+a[5], row{a[0], a[1], a[5], a[4], a[6], a[7], a[3]}, true)
	}},
	{"SELECT id, shard.epoch FROM shard JOIN closed", func(t *tx, a []string) (r result, err error) {
		r.types = "ii"
		for _, k := range t.keys("shard") {
			sh, c := t.get("shard", k), t.get("closed", k)
			if sh[1] == a[0] && c != nil && c[1] == sh[2] {
				r.rows = append(r.rows, row{k, sh[2]})
			}
		}
		return r, nil
	}},
	{"SELECT nextval('message_number')", func(t *tx, _ []string) (result, error) {
		if err := t.lock("sequence", "message_number", true); err != nil {
			return result{}, err
		}
		n := t.get("sequence", "message_number")[0]
		t.put("sequence", "message_number", row{fmt.Sprint(atoi(n) + 1<<20)})
		return result{types: "i", rows: []row{{n}}}, nil
	}},

	{"DELETE FROM limit_share WHERE CASE", func(t *tx, _ []string) (result, error) {
		return result{}, t.remove("limit_share", func(r row) bool {
			s := t.get("node_share", r[0])
			return (s == nil || !t.later(s[1])) && !nodeshare.IsDay(r[1]) // no seed lasts until the next day
		})
	}},
	{"SELECT floor(extract(epoch FROM clock_timestamp())", func(t *tx, a []string) (result, error) {
		return result{types: "i", rows: []row{{fmt.Sprint(t.s.host.now() / 1e6 / atoi(a[0]))}}}, nil
	}},
	{"SELECT n.node, coalesce(bool_or(n.alone), false)", doOthers},
	{"INSERT INTO node_version VALUES", func(t *tx, a []string) (result, error) {
		return result{}, t.set("node_version", a[0], row{a[0], t.seconds(a[1]), a[2]}, false)
	}},
	{"SELECT node, key, share, demand FROM limit_share WHERE node = $1", func(t *tx, a []string) (r result, err error) {
		r.types = "ttii"
		for _, key := range list(a[1]) {
			if s := t.get("limit_share", a[0]+" "+key); s != nil {
				r.rows = append(r.rows, s)
			}
		}
		return r, nil
	}},
	{"SELECT node, key, share, demand FROM limit_share", func(t *tx, a []string) (r result, err error) {
		r.types = "ttii"
		keys := list(a[1])
		for _, k := range t.keys("limit_share") {
			if s := t.get("limit_share", k); s[0] != a[0] && slices.Contains(keys, s[1]) {
				r.rows = append(r.rows, s)
			}
		}
		return r, nil
	}},
	{"INSERT INTO node_share VALUES", func(t *tx, a []string) (result, error) {
		return result{}, t.set("node_share", a[0], row{a[0], t.seconds(a[1]), a[2][:1]}, false)
	}},
	{"DELETE FROM limit_share WHERE node = $1", func(t *tx, a []string) (result, error) {
		keys := list(a[1])
		return result{}, t.remove("limit_share", func(r row) bool {
			today := strings.TrimSuffix(a[4], "%")
			return r[0] == a[0] && !slices.Contains(keys, r[1]) && (!nodeshare.IsDay(r[1]) || a[2][:1] == "f" && strings.HasPrefix(r[1], today))
		})
	}},
	{"LISTEN ", func(t *tx, _ []string) (result, error) { return result{tag: "LISTEN"}, t.needs("node_call") }},
	{"SELECT pg_notify(", fixed("t", "")}, // it only saves the wait for the next look
	{"INSERT INTO node_call", doAsk},
	{"SELECT taken, answer IS NOT NULL", doAnswer},
	{"DELETE FROM node_call WHERE until <", func(t *tx, _ []string) (result, error) {
		return result{tag: "DELETE 0"}, t.remove("node_call", func(r row) bool { return !t.later(r[6]) })
	}},
	{"DELETE FROM node_call WHERE id = $1 AND taken = $2", func(t *tx, a []string) (result, error) {
		n := 0
		err := t.remove("node_call", func(r row) bool { return r[0] == a[0] && r[7] == a[1][:1] })
		if r, changed := t.changes[cell{"node_call", a[0]}]; changed && r == nil {
			n = 1
		}
		return result{tag: fmt.Sprint("DELETE ", n)}, err
	}},
	{"UPDATE node_call SET taken = true", func(t *tx, a []string) (result, error) { return doTake(t, a, "t") }},
	{"UPDATE node_call SET taken = false", func(t *tx, a []string) (result, error) { return doTake(t, a, "f") }}, // planted
	{"UPDATE node_call SET answer", func(t *tx, a []string) (result, error) {
		_, err := t.alter("node_call", a[0], func(r row) { r[8], r[9] = octets(a[1]), a[2] })
		return result{}, err
	}},
	{"SELECT EXISTS (SELECT FROM node_order)", func(t *tx, _ []string) (result, error) {
		return result{types: "b", rows: []row{{truth(len(t.keys("node_order")) > 0)}}}, t.needs("node_order")
	}},
	{"DELETE FROM node_order WHERE number IN", func(*tx, []string) (result, error) { return result{tag: "DELETE 0"}, nil }}, // no seed lasts so long
	{"DELETE FROM node_order WHERE number =", func(t *tx, a []string) (result, error) {
		return result{}, t.remove("node_order", func(r row) bool { return r[0] == a[0] })
	}},
	{"SELECT count(*) FROM node_order WHERE asker", func(t *tx, a []string) (result, error) {
		n := 0
		for _, k := range t.keys("node_order") {
			if o := t.get("node_order", k); o[1] == a[0] && o[6] == a[1][:1] {
				n++
			}
		}
		return result{types: "i", rows: []row{{fmt.Sprint(n)}}}, nil
	}},
	{"INSERT INTO node_order", doLeave},
	{"SELECT number, given, asker, node, shard, who, what, open, kind, request FROM node_order", doDue},
	{"SELECT note FROM node_note", func(t *tx, a []string) (r result, err error) {
		r.types = "x"
		for _, k := range t.keys("node_note") {
			if n := t.get("node_note", k); n[1] == a[0] && n[0] != a[1] && t.later(n[2]) {
				r.rows = append(r.rows, row{n[3]})
			}
		}
		return r, t.needs("node_note")
	}},
	{"DELETE FROM node_note WHERE", func(t *tx, a []string) (result, error) {
		return result{}, t.remove("node_note", func(r row) bool { return r[0] == a[0] && r[1] == a[1] })
	}},
	{"INSERT INTO node_note VALUES", func(t *tx, a []string) (result, error) {
		return result{}, t.set("node_note", a[0]+" "+a[1], row{a[0], a[1], t.seconds(a[2]), octets(a[3])}, false)
	}},
	{"INSERT INTO limit_share SELECT", func(t *tx, a []string) (result, error) {
		keys, shares, demands := list(a[1]), list(a[2]), list(a[3])
		for i, k := range keys {
			if err := t.set("limit_share", a[0]+" "+k, row{a[0], k, shares[i], demands[i]}, false); err != nil {
				return result{}, err
			}
		}
		return result{}, nil
	}},
}

// needs says that a table is missing.
func (t *tx) needs(table string) error {
	if t.get("class", table) == nil {
		return &pgError{"42P01", "relation \"" + table + "\" does not exist"}
	}
	return nil
}

// create makes a table unless it is there. One that another transaction is just making is a conflict, as in PostgreSQL.
func (t *tx) create(table string) (result, error) {
	if t.get("class", table) != nil {
		return result{tag: "CREATE TABLE"}, nil
	}
	if err := t.lock("class", table, true); err != nil {
		return result{}, err
	}
	if t.get("class", table) != nil {
		return result{}, &pgError{"23505", "duplicate key value violates unique constraint \"pg_type_typname_nsp_index\""}
	}
	t.put("class", table, row{})
	return result{tag: "CREATE TABLE"}, nil
}

// octets are those of a bytea in its text form.
func octets(text string) string {
	if h, ok := strings.CutPrefix(text, `\x`); ok {
		if b, err := hex.DecodeString(h); err == nil {
			return string(b)
		}
	}
	return text
}

// doAsk adds a call, unless its node has too many.
func doAsk(t *tx, a []string) (result, error) {
	if err := t.needs("node_call"); err != nil {
		return result{}, err
	}
	n := 0
	for _, k := range t.keys("node_call") {
		if t.get("node_call", k)[1] == a[1] {
			n++
		}
	}
	if n >= int(atoi(a[7])) {
		return result{tag: "INSERT 0 0"}, nil
	}
	return result{tag: "INSERT 0 1"}, t.set("node_call", a[0], row{a[0], a[1], a[2], a[3], a[4], octets(a[5]), t.seconds(a[6]), "f", null, null}, false)
}

// doLeave adds an order, with the next number.
func doLeave(t *tx, a []string) (result, error) {
	if err := t.lock("sequence", "node_order", true); err != nil {
		return result{}, err
	}
	n := int64(1)
	if last := t.get("sequence", "node_order"); last != nil {
		n += atoi(last[0])
	}
	t.put("sequence", "node_order", row{fmt.Sprint(n)})
	number := fmt.Sprint(n)
	return result{tag: "INSERT 0 1"}, t.set("node_order", sortable(number), row{number, a[1], a[2], a[3], a[4], a[5], a[6][:1], a[7], octets(a[8])}, true)
}

// doDue locks the first order for a node, or for one of its shards. One that has gone when its row is locked is none.
func doDue(t *tx, a []string) (r result, err error) {
	r.types = "izttittbix"
	if err := t.needs("node_order"); err != nil {
		return r, err
	}
	shards := list(a[1])
	for _, k := range t.keys("node_order") {
		o := t.get("node_order", k)
		if !(o[3] == "0" && o[2] == a[0] || slices.Contains(shards, o[3])) {
			continue
		}
		if err := t.lock("node_order", k, true); err != nil {
			return r, err
		}
		if o = t.get("node_order", k); o != nil {
			r.rows = []row{{o[0], "2000-01-01 00:00:00+00", o[1], o[2], o[3], o[4], o[5], o[6], o[7], o[8]}}
		}
		break
	}
	return r, nil
}

// doAnswer says how a call stands.
func doAnswer(t *tx, a []string) (r result, err error) {
	r.types = "bbxtb"
	if err := t.needs("node_call"); err != nil {
		return r, err
	}
	if c := t.get("node_call", a[0]); c != nil {
		n := t.get("node", a[2])
		alive := n != nil && atoi(n[2]) > t.s.host.now()-atoi(a[1])*1e6
		r.rows = []row{{c[7], truth(c[8] != null || c[9] != null), c[8], c[9], truth(alive)}}
	}
	return r, nil
}

// doTake takes the first call for a node. What has been taken or deleted when its row is locked is not taken.
func doTake(t *tx, a []string, taken string) (r result, err error) {
	r.types = "tttix"
	var first row
	for _, k := range t.keys("node_call") {
		if c := t.get("node_call", k); c[2] == a[0] && c[7] == "f" && t.later(c[6]) && (first == nil || atoi(c[6]) < atoi(first[6])) {
			first = c
		}
	}
	if first == nil {
		return r, t.needs("node_call")
	}
	if err := t.lock("node_call", first[0], true); err != nil {
		return r, err
	}
	c := t.get("node_call", first[0])
	if c == nil || c[7] == "t" || !t.later(c[6]) {
		return r, nil
	}
	c = slices.Clone(c)
	c[7] = taken
	t.put("node_call", c[0], c)
	r.rows = []row{{c[0], c[1], c[3], c[4], c[5]}}
	return r, nil
}

// copyHead is how long what comes before the rows is in COPY's binary form.
const copyHead = 19

// segmentOf is the table that a statement names.
func segmentOf(a []string) string {
	i := slices.IndexFunc(a, func(v string) bool { return strings.HasPrefix(v, "seg_") })
	return a[i]
}

// doShare answers how many shards there are, how many nodes live, and whether the one that asks is drained.
func doShare(t *tx, a []string) (result, error) {
	living, drained := 0, "f"
	for _, k := range t.keys("node") {
		n := t.get("node", k)
		if n[3] == "f" && (n[0] == a[0] || atoi(n[2]) > t.s.host.now()-atoi(a[1])*1e6) {
			living++
		}
		if n[0] == a[0] {
			drained = n[3]
		}
	}
	return result{types: "iib", rows: []row{{fmt.Sprint(len(t.keys("shard"))), fmt.Sprint(living), drained}}}, nil
}

// doOthers answers which other nodes live, as their exchanges or their shards say, whether they believe to be alone, and whether they are of an old
// version.
func doOthers(t *tx, a []string) (r result, err error) {
	r.types = "tbb"
	alone := map[string]string{}
	for _, k := range t.keys("node_share") {
		if s := t.get("node_share", k); t.later(s[1]) {
			alone[s[0]] = s[2]
		}
	}
	for _, k := range t.keys("shard") {
		if n := t.get("shard", k)[1]; n != null && t.later(t.get("lease", k)[1]) && alone[n] == "" {
			alone[n] = "f"
		}
	}
	for _, n := range slices.Sorted(maps.Keys(alone)) {
		if n != a[0] {
			v := t.get("node_version", n)
			r.rows = append(r.rows, row{n, alone[n], truth(v == nil || !t.later(v[1]))})
		}
	}
	return r, nil
}

// doTerminate ends the sessions of a shard's owner, if its lease has run out.
func doTerminate(t *tx, a []string) (result, error) {
	h := t.s.host
	owner := t.get("shard", a[0])[1]
	if owner == null || t.later(t.get("lease", a[0])[1]) {
		return result{types: "b"}, nil
	}
	var list []*session
	for s := range h.sessions {
		if s.node == owner {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *session) int { return a.number - b.number })
	h.mu.Unlock()
	for _, s := range list {
		s.kill()
	}
	h.mu.Lock()
	return result{types: "b"}, nil
}

// doClaim locks the rows of shards that are the node's, with the epochs that it believes they have: those that are, in the
// statement's view of the database, and still are when they are locked.
func doClaim(t *tx, a []string) (r result, err error) {
	r.types = "i"
	t.claims = map[string]string{}
	is := func(id, epoch string) bool { s := t.get("shard", id); return s != nil && s[1] == a[0] && s[2] == epoch }
	for i := 1; i+1 < len(a); i += 2 {
		t.claims[a[i]] = a[i+1]
		if !is(a[i], a[i+1]) {
			continue
		}
		if err := t.lock("shard", a[i], false); err != nil {
			return r, err
		}
		if is(a[i], a[i+1]) {
			r.rows = append(r.rows, row{a[i]})
		}
	}
	return r, nil
}
