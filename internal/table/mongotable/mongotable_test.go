package mongotable

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"posthaste/internal/table"
	"posthaste/internal/table/query"
)

// opened opens a table on a server, with the usual settings where settings has none.
func opened(t *testing.T, f *fake, settings string) (table.Table, func() []string) {
	t.Helper()
	for _, line := range []string{"uri = mongodb://" + f.addr + "/", "dbname = mail", "collection = alias", `query_filter = {"address": "%s"}`} {
		name, _, _ := strings.Cut(line, " ")
		if !strings.Contains("\n"+settings, "\n"+name+" =") {
			settings += "\n" + line
		}
	}
	if !strings.Contains(settings, "result_attribute") && !strings.Contains(settings, "projection") {
		settings += "\nresult_attribute = goto"
	}
	path := filepath.Join(t.TempDir(), "table.cf")
	if err := os.WriteFile(path, []byte(settings+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var warnings []string
	tab, err := Open(nil)(path, table.Options{Warn: func(text string) { mu.Lock(); warnings = append(warnings, text); mu.Unlock() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tab.Close() })
	return tab, func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(warnings) }
}

func result(t *testing.T, tab table.Table, key string) string {
	t.Helper()
	value, found, err := tab.Lookup(t.Context(), key)
	switch {
	case err != nil:
		return "error: " + err.Error()
	case !found:
		return "none"
	}
	return value
}

func one(e ...bson.E) []bson.D { return []bson.D{bson.D(e)} }

// What documents make which answer.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, settings, want string
		documents            []bson.D
		warns                int
	}{
		{"nothing", "", "none", []bson.D{}, 0},
		{"refused", "", "error", nil, 0},
		{"one string", "", "a@b", one(bson.E{Key: "goto", Value: "a@b"}), 0},
		{"an array", "", "a,b,7", one(bson.E{Key: "goto", Value: bson.A{"a", bson.A{"b"}, int64(7)}}), 0},
		{"an empty array", "", "none", one(bson.E{Key: "goto", Value: bson.A{}}), 0},
		{"two fields", "result_attribute = goto, copy", "a,b", one(bson.E{Key: "goto", Value: "a"}, bson.E{Key: "copy", Value: "b"}), 0},
		{"numbers", "", "-5,1", one(bson.E{Key: "goto", Value: int32(-5)}, bson.E{Key: "copy", Value: int64(1)}), 0},
		{"two documents", "", "a,b", []bson.D{{{Key: "goto", Value: "a"}}, {{Key: "goto", Value: "b"}}}, 0},
		{"other types", "", "a", one(bson.E{Key: "x", Value: bson.D{{Key: "y", Value: "z"}}}, bson.E{Key: "goto", Value: "a"}, bson.E{Key: "b", Value: true}), 2},
		{"a format", "result_format = smtp:[%s]", "smtp:[a],smtp:[b]", one(bson.E{Key: "goto", Value: bson.A{"a", "b"}}), 0},
		{"ten", "", "0,1,2,3,4,5,6,7,8,9", one(bson.E{Key: "goto", Value: bson.A{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}), 0},
		{"over the limit", "", "error", one(bson.E{Key: "goto", Value: bson.A{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}), 0},
		{"no limit", "expansion_limit = 0", "0,1,2,3,4,5,6,7,8,9,10", one(bson.E{Key: "goto", Value: bson.A{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, func(int, bson.D) []bson.D { return c.documents })
			f.batch = 1
			tab, warnings := opened(t, f, c.settings)
			got := result(t, tab, "Key@Example.COM")
			if got != c.want && (c.want != "error" || !strings.HasPrefix(got, "error: ")) {
				t.Errorf("%s, want %s", got, c.want)
			}
			if w := warnings(); len(w) != c.warns {
				t.Errorf("warnings: %q", w)
			}
			for _, find := range f.asked() {
				if got := field(find, "filter"); !reflect.DeepEqual(got, bson.D{{Key: "address", Value: "key@example.com"}}) {
					t.Errorf("asked: %v", got)
				}
			}
		})
	}
}

// What is asked for: projection, database, domain; and when nothing is.
func TestQuestions(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(int, bson.D) []bson.D { return []bson.D{} })
	for _, c := range []struct {
		settings, key string
		filter        any // nil: not asked
		projection    bson.D
	}{
		{"", "k", bson.D{{Key: "address", Value: "k"}}, bson.D{{Key: "goto", Value: int32(1)}, {Key: "_id", Value: int32(0)}}},
		{`projection = {"_id": 1, "x": {"$slice": 2}}`, "k", bson.D{{Key: "address", Value: "k"}}, bson.D{{Key: "_id", Value: int32(1)}, {Key: "x", Value: bson.D{{Key: "$slice", Value: int32(2)}}}}},
		{`query_filter = {"u": "%u", "$or": [{"d": "%d"}, {"n": 1}], "p": "100%%"}`, "a@b.c",
			bson.D{{Key: "u", Value: "a"}, {Key: "$or", Value: bson.A{bson.D{{Key: "d", Value: "b.c"}}, bson.D{{Key: "n", Value: int32(1)}}}}, {Key: "p", Value: "100%"}}, nil},
		{`query_filter = {"d": "%d"}`, "a", nil, nil},
		{"domain = example.com", "a@example.com", bson.D{{Key: "address", Value: "a@example.com"}}, nil},
		{"domain = example.com", "a@example.org", nil, nil},
		{"domain = example.com", "example.com", nil, nil},
		{"", "", nil, nil},
		{"", "a\x00b", nil, nil},
		{"", "a\xffb", nil, nil},
	} {
		before := len(f.asked())
		tab, _ := opened(t, f, c.settings)
		if got := result(t, tab, c.key); got != "none" {
			t.Errorf("%s: %q: %s", c.settings, c.key, got)
		}
		asked := f.asked()[before:]
		if c.filter == nil {
			if len(asked) > 0 {
				t.Errorf("%s: %q: asked %v", c.settings, c.key, asked)
			}
			continue
		}
		if len(asked) != 1 || !reflect.DeepEqual(field(asked[0], "filter"), c.filter) || field(asked[0], "$db") != "mail" || field(asked[0], "find") != "alias" {
			t.Errorf("%s: %q: asked %v", c.settings, c.key, asked)
		} else if c.projection != nil && !reflect.DeepEqual(field(asked[0], "projection"), c.projection) {
			t.Errorf("%s: projection %v", c.settings, field(asked[0], "projection"))
		}
	}
}

// A server that was restarted is read again; one that is away is an error, not
// "not found".
func TestRestart(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(int, bson.D) []bson.D { return one(bson.E{Key: "goto", Value: "v"}) })
	tab, _ := opened(t, f, "timeout = 3")
	for range 3 {
		if got := result(t, tab, "k"); got != "v" {
			t.Fatal(got)
		}
		addr := f.addr
		f.stop()
		f.listen(addr)
	}
	f.stop()
	if got := result(t, tab, "k"); !strings.HasPrefix(got, "error: ") {
		t.Error(got)
	}
	f.listen(f.addr)
	if got := result(t, tab, "k"); got != "v" {
		t.Error(got)
	}
}

// What a server says to one question is bounded.
func TestAnswerWithoutEnd(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(int, bson.D) []bson.D { return []bson.D{} })
	f.endless = true
	tab, _ := opened(t, f, "timeout = 5\nuri = mongodb://"+f.addr+"/?retryReads=false")
	if got := result(t, tab, "k"); !strings.HasPrefix(got, "error: ") {
		t.Error(got)
	}
	tab.Close()
	f.stop()
	if f.taken < 64<<10 || f.taken > 2*query.MaxAnswer {
		t.Errorf("%d octets were taken", f.taken)
	}
}

// A filter into which a key cannot be put safely is refused when the table is opened.
func TestRefusedFilters(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		`{"a": %s}`, `{"a": "%s"`, `{"%s": 1}`, `{"a": {"x%u": 1}}`, `{"a": "%x"}`, `{"a": "%s"} {"b": 1}`, `["%s"]`, ``,
		`{"$where": "this.a == '%s'"}`, `{"$expr": {"$function": {"body": "%s", "args": [], "lang": "js"}}}`,
		`{"a": {"$code": "%s"}}`, `{"$text": {"$search": "%s"}}`, `{"$jsonSchema": {"properties": {"a": {"pattern": "%s"}}}}`,
	} {
		if f, err := parseFilter(bad); err == nil {
			t.Errorf("%s is taken: %v", bad, f.document)
		}
	}
}

// What strings mean differs by where they are.
func TestPlaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ filter, key, want string }{
		{`{"a": {"$regex": "^%u@"}}`, "x.*y@d", `{"a":{"$regex":"^x\\.\\*y@"}}`},
		{`{"a": {"$regularExpression": {"pattern": "^%s$", "options": "ix"}}}`, "a b#", `{"a":{"$regularExpression":{"pattern":"^a\\ b\\#$","options":"ix"}}}`},
		{`{"$expr": {"$eq": ["$a", "%s"]}}`, "$password", `{"$expr":{"$eq":["$a",{"$literal":"$password"}]}}`},
		{`{"$expr": {"$eq": ["$a", {"$literal": "%s"}]}}`, "$p", `{"$expr":{"$eq":["$a",{"$literal":"$p"}]}}`},
		{`{"$expr": {"$regexMatch": {"input": "$a", "regex": "%s"}}}`, "$p", `{"$expr":{"$regexMatch":{"input":"$a","regex":"\\$p"}}}`},
		{`{"$where": "true", "a": "%s"}`, "$where", `{"$where":"true","a":"$where"}`},
		{`{"a": {"$in": ["%s", "%d"]}, "n": {"$numberLong": "5"}}`, `"}`, ""},
	} {
		f, err := parseFilter(c.filter)
		if err != nil {
			t.Errorf("%s: %v", c.filter, err)
			continue
		}
		d, ok := f.query(c.key)
		got := ""
		if ok {
			b, err := bson.MarshalExtJSON(d, false, false)
			if err != nil {
				t.Fatal(err)
			}
			got = string(b)
		}
		if got != c.want {
			t.Errorf("%s with %s: %s, want %s", c.filter, c.key, got, c.want)
		}
	}
}

// No key changes anything but the content of the strings that it is meant for.
func TestKeysStayStrings(t *testing.T) {
	t.Parallel()
	f, err := parseFilter(`{"$or": [{"a": "%s"}, {"b": "<%u>"}], "c": {"$ne": "%S"}, "n": 1}`)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.String().Filter(query.Askable).Draw(t, "key")
		d, ok := f.query(key)
		if !ok {
			return
		}
		user := key
		if i := strings.LastIndexByte(key, '@'); i >= 0 {
			user = key[:i]
		}
		want := bson.D{{Key: "$or", Value: bson.A{bson.D{{Key: "a", Value: key}}, bson.D{{Key: "b", Value: "<" + user + ">"}}}},
			{Key: "c", Value: bson.D{{Key: "$ne", Value: key}}}, {Key: "n", Value: int32(1)}}
		b, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var back bson.D
		if err := bson.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, want) {
			t.Fatalf("%q: %v, %v", key, back, err)
		}
	})
}

func TestSettings(t *testing.T) {
	t.Parallel()
	good := map[string]string{"uri": "mongodb://u:geheim@127.0.0.1:1/", "dbname": "d", "collection": "c", "query_filter": `{"a": "%s"}`, "result_attribute": "b"}
	for _, c := range []struct{ name, value string }{
		{"uri", ""}, {"uri", "http://u:geheim@x/"}, {"uri", "mongodb://u:geheim@x:port/"}, {"uri", "mongodb://u:ge/heim@x/"}, {"dbname", ""}, {"collection", ""}, {"query_filter", ""},
		{"query_filter", "{"}, {"result_attribute", ""}, {"projection", "x"}, {"expansion_limit", "-1"}, {"timeout", "0"}, {"result_format", "%x"},
		{"uri", "mongodb://u:geheim@x/?authMechanism=NONSENSE"},
	} {
		var text strings.Builder
		for name, value := range good {
			if name != c.name {
				text.WriteString(name + " = " + value + "\n")
			}
		}
		text.WriteString(c.name + " = " + c.value + "\n")
		path := filepath.Join(t.TempDir(), "table.cf")
		if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(nil)(path, table.Options{})
		if err == nil {
			t.Errorf("%s = %s is taken", c.name, c.value)
		} else if strings.Contains(err.Error(), "geheim") || strings.Contains(err.Error(), "heim@") {
			t.Errorf("%s = %s: the error has the password: %v", c.name, c.value, err)
		}
	}
}
