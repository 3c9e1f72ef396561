package proto

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/ipc"
	"posthaste/internal/pack"
	"posthaste/internal/queue"
	"posthaste/internal/smtpwire"
)

var update = flag.Bool("update", false, "write testdata/wire.txt anew")

// Each type of the package that has a Kind is in all, and no two have the same: the tests
// below are about every message that there is.
func TestAllMessages(t *testing.T) {
	t.Parallel()
	listed := map[string]bool{}
	kinds := map[uint16]string{}
	for _, m := range all {
		name := reflect.TypeOf(m).Elem().Name()
		if other := kinds[m.Kind()]; other != "" {
			t.Errorf("%s and %s have the same kind", name, other)
		}
		kinds[m.Kind()], listed[name] = name, true
	}
	declared := 0
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || fn.Name.Name != "Kind" {
				continue
			}
			declared++
			if name := fn.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name; !listed[name] {
				t.Errorf("%s: %s is not in the list of messages", e.Name(), name)
			}
		}
	}
	if declared != len(all) {
		t.Errorf("%d messages are declared, %d listed", declared, len(all))
	}
}

// Every field of every message survives the journey, with all others and alone: one that is
// added and forgotten in Append or Decode fails here, and one that another hides.
func TestEveryFieldTravels(t *testing.T) {
	t.Parallel()
	for _, m := range all {
		travels(t, fmt.Sprintf("%T", m), full(t, m))
		list := leavesOf(t, m)
		for i := range list {
			travels(t, list[i].path+" alone", alone(t, m, list, i))
		}
	}
}

func travels(t *testing.T, what string, m ipc.Message) {
	t.Helper()
	got := fresh(m)
	if err := got.Decode(m.Append(nil)); err != nil {
		t.Errorf("%s: %v", what, err)
	} else if !same(got, m) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, m)
	}
}

// A cut is a place in an encoded message: a field, and those that it is inside of.
type cut struct {
	tags string // from the outside in, with dots
	at   []span
}

// A span is where a field lies in what it is part of, and where its content begins there.
type span struct{ lo, body, hi int }

// cuts lists the fields of b, and for each whether it consists of fields itself, which try
// finds out: the others are values.
func cuts(b []byte, outer cut, try func(cut) bool, yield func(c cut, nested bool)) {
	inner := b
	for _, s := range outer.at {
		inner = inner[s.body:s.hi]
	}
	for off := 0; off < len(inner); {
		r := pack.NewReader(inner[off:])
		r.Next()
		n := len(r.Bytes())
		head := len(pack.Bytes(nil, r.Tag(), r.Bytes())) - n
		c := cut{strings.TrimPrefix(outer.tags+"."+string(rune(r.Tag())), "."), append(slices.Clone(outer.at), span{off, off + head, off + head + n})}
		nested := try(c)
		yield(c, nested)
		if nested {
			cuts(b, c, try, yield)
		}
		off += head + n
	}
}

// with is b with another content in the field at c; nil takes the field away.
func (c *cut) with(b, content []byte) []byte { return replaced(b, c.at, content) }

func replaced(b []byte, at []span, content []byte) []byte {
	s := at[0]
	field := []byte(nil)
	switch {
	case len(at) > 1:
		field = pack.Bytes(nil, b[s.lo], replaced(b[s.body:s.hi], at[1:], content))
	case content != nil:
		field = pack.Bytes(nil, b[s.lo], content)
	}
	return slices.Concat(b[:s.lo], field, b[s.hi:])
}

// content is what the field at c has.
func (c *cut) content(b []byte) []byte {
	for _, s := range c.at {
		b = b[s.body:s.hi]
	}
	return b
}

// unknown is a field that nobody has declared.
var unknown = pack.Bytes(nil, '\x01', "of a later version")

// tolerates gives a function that says whether a field of m may have one more inside of it. That
// makes a value another one, or malformed: so it says which fields consist of others.
func tolerates(m ipc.Message, b []byte) func(cut) bool {
	return func(c cut) bool {
		got := fresh(m)
		more := c.with(b, append(slices.Clone(c.content(b)), unknown...))
		return got.Decode(more) == nil && same(got, m)
	}
}

// flat are the structs whose fields travel among those of what they are in.
var flat = []reflect.Type{reflect.TypeFor[queue.Mark](), reflect.TypeFor[queue.Placed](), reflect.TypeFor[Refusal](), reflect.TypeFor[smtpwire.Reply]()}

// structs counts the structs in v that travel as a field each.
func structs(v reflect.Value) (n int) {
	switch {
	case v.Kind() == reflect.Pointer:
		return structs(v.Elem())
	case kindOf(v.Type()) != "":
		return 0
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		for i := range v.Len() {
			n += structs(v.Index(i))
		}
		return n
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		n += structs(v.Field(i))
		// What is embedded travels flat, but for the entry of the queue, which has a form of its own.
		if f.Anonymous && f.Type != reflect.TypeFor[queue.Entry]() {
			n--
		}
	}
	if !slices.Contains(flat, v.Type()) {
		n++
	}
	return n
}

// A field more is passed over, in a message and in everything that it consists of: that is what a
// newer process may send without another ipc.Version.
func TestFieldMore(t *testing.T) {
	t.Parallel()
	for _, m := range all {
		m := full(t, m)
		b := m.Append(nil)
		for what, more := range map[string][]byte{"before": append(slices.Clone(unknown), b...), "behind": append(slices.Clone(b), unknown...)} {
			got := fresh(m)
			if err := got.Decode(more); err != nil || !same(got, m) {
				t.Errorf("%T with an unknown field %s it: %v\n got %+v\nwant %+v", m, what, err, got, m)
			}
		}
		passed := 0
		cuts(b, cut{}, tolerates(m, b), func(_ cut, nested bool) {
			if nested {
				passed++
			}
		})
		if want := structs(reflect.ValueOf(m).Elem()) - 1; passed != want {
			t.Errorf("%T: a field more is passed over in %d of the %d structs that it consists of", m, passed, want)
		}
	}
}

// needed are the fields that must be there, by message: all others may be missing.
var needed = map[string][]string{"Submit": {"e.q"}, "Deliver": {"e.q"}}

// A field less is the zero value, in a message and in everything that it consists of, except for
// what a message makes no sense without: that is what an older process may send. None is there for nothing.
func TestFieldLess(t *testing.T) {
	t.Parallel()
	for _, m := range all {
		m := full(t, m)
		b := m.Append(nil)
		name := reflect.TypeOf(m).Elem().Name()
		cuts(b, cut{}, tolerates(m, b), func(c cut, _ bool) {
			got := fresh(m)
			err := got.Decode(c.with(b, nil))
			if must := slices.Contains(needed[name], c.tags); must != (err != nil) {
				t.Errorf("%s without %s: %v", name, c.tags, err)
			}
			if err == nil && same(got, m) {
				t.Errorf("%s is the same without %s", name, c.tags)
			}
		})
	}
}

// A message that ends before it is whole is refused, unless it ends where a field does.
func TestTruncated(t *testing.T) {
	t.Parallel()
	for _, m := range all {
		b := full(t, m).Append(nil)
		ends := map[int]bool{0: true}
		cuts(b, cut{}, func(cut) bool { return false }, func(c cut, _ bool) { ends[c.at[0].hi] = true })
		for n := range b {
			err := fresh(m).Decode(b[:n:n])
			if !ends[n] && !errors.Is(err, pack.ErrMalformed) {
				t.Errorf("%T: %d of %d octets: %v", m, n, len(b), err)
			}
		}
	}
}

// A value is a field that has no others inside, now.
type value struct{ tags, content string }

// values are those of an encoded message, in order.
func values(m ipc.Message) (list []value) {
	b := m.Append(nil)
	cuts(b, cut{}, tolerates(m, b), func(c cut, nested bool) {
		if content := c.content(b); !nested || len(content) == 0 {
			list = append(list, value{c.tags, string(content)})
		}
	})
	return list
}

// wire says of each field of each message by which tags it travels, and what its value is.
func wire(t *testing.T) (lines []string) {
	for _, m := range all {
		lines = append(lines, fmt.Sprintf("%s kind %d", reflect.TypeOf(m).Elem().Name(), m.Kind()))
		list := leavesOf(t, m)
		for i := range list {
			one, none := alone(t, m, list, i), alone(t, m, list, i)
			list[i].get(reflect.ValueOf(none).Elem()).SetZero()
			with, without := values(one), values(none)
			k := 0
			for k < len(with) && k < len(without) && with[k] == without[k] {
				k++
			}
			if k == len(with) {
				t.Fatalf("%s does not travel", list[i].path)
			}
			lines = append(lines, fmt.Sprintf("%s %s %s", list[i].path, with[k].tags, list[i].kind))
		}
	}
	return lines
}

// What a running system agrees on is in testdata/wire.txt: the version, and by which kinds, tags and
// values messages travel. As long as the version is the same nothing of that goes away or comes to mean
// something else; what is new is added with -update.
func TestWire(t *testing.T) {
	t.Parallel()
	const file = "testdata/wire.txt"
	now := append([]string{fmt.Sprintf("version %d", ipc.Version)}, wire(t)...)
	text, err := os.ReadFile(file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	was := strings.Split(strings.TrimSpace(string(text)), "\n")
	if was[0] == now[0] {
		for _, line := range was {
			if !slices.Contains(now, line) {
				t.Errorf("%q is not so any more: a process of before the change would misunderstand it; raise ipc.Version, or use another tag (and if it has but another name in Go, change the line by hand)", line)
			}
		}
	}
	if t.Failed() || slices.Equal(was, now) {
		return
	}
	if !*update {
		t.Fatalf("%s is not what travels now: -update writes it anew", file)
	}
	if err := os.WriteFile(file, []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// number is an element of an array: all travel by one tag, in order.
var number = regexp.MustCompile(`\[[0-9]+\]`)

// No tag means two things in one place: what reads it would get either.
func TestTagsOnce(t *testing.T) {
	t.Parallel()
	used := map[string]string{}
	for _, line := range wire(t) {
		path, tags, _ := strings.Cut(line, " ")
		name, _, _ := strings.Cut(path, ".")
		tags, _, _ = strings.Cut(tags, " ")
		path = number.ReplaceAllString(path, "[]")
		if other, ok := used[name+" "+tags]; ok && other != path {
			t.Errorf("%s and %s both travel as %s", other, path, tags)
		}
		used[name+" "+tags] = path
	}
}
