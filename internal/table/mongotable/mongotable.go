// Package mongotable is lookup tables in MongoDB, with the settings of Postfix's
// mongodb_table(5). Package query says where settings are, and what %s, %u and so on mean
// in query_filter and result_format.
//
// # Settings
//
//	uri               the server or cluster: mongodb://user:password@host:27017/, or
//	                  mongodb+srv://..., with all that such a URI can say
//	dbname            the database
//	collection        the collection in it
//	query_filter      a document in JSON that says what is looked for, such as
//	                  {"$or": [{"username": "%s"}, {"alias.address": "%s"}], "active": 1}
//	result_attribute  the fields that make the answer, with commas or blanks between
//	projection        instead: a document in JSON that says what is returned
//	result_format     %s: what becomes of each value
//	expansion_limit   10: more values than this are an error; 0: no limit
//	domain            the domains that the table is for; empty: any key
//	timeout           10: seconds for a lookup, connecting included (ours)
//	max_connections   10: at most so many to one server at a time (ours)
//
// # Answers
//
// The answer is the strings and whole numbers in the fields of all documents that are
// found, those in arrays included, with commas between them. Values of other types are passed
// over with a warning. Where several documents are found Postfix's answer is the last
// one alone.
//
// # Servers
//
// The driver keeps connections, finds the cluster's members, and tries a read again
// that failed for a reason that may pass. The first lookup connects; a
// mongodb+srv URI needs the DNS then.
//
// # Security
//
// Keys come from strangers. The filter is parsed before there is a key, and keys are
// only put into its strings: nothing in a key changes what the filter asks for. Inside a
// regular expression they are escaped; inside $expr they are wrapped in $literal, as
// "$name" would be a field there; and a filter that puts them into a
// program or a search expression ($where, $function, $text) is refused. What a server says
// to one question is bounded. No error has the URI's password in it.
package mongotable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"posthaste/internal/config"
	"posthaste/internal/lockstep"
	"posthaste/internal/table"
	"posthaste/internal/table/query"
)

// maxDocuments bounds the documents of one answer: those without a value count too.
const maxDocuments = 10000

// maxDepth bounds arrays in arrays.
const maxDepth = 16

// closeTime is how long connections may take to be closed.
const closeTime = 2 * time.Second

// mongoTable is one table.
type mongoTable struct {
	keys       query.Keys
	filter     *filter
	projection bson.D
	format     *query.Template
	limit      int
	timeout    time.Duration
	dbname     string
	collection string
	title      string
	warn       func(string) // nil: nobody listens
	connect    func() (*mongo.Client, error)

	mu     sync.Mutex
	client *mongo.Client // nil before the first lookup
	closed bool
}

// Open returns the opener of mongodb tables. cfg is main.cf, for tables whose
// settings are there. The server is not contacted before the first lookup.
func Open(cfg *config.Config) table.Opener {
	return func(name string, o table.Options) (table.Table, error) {
		s, err := query.Load(name, cfg)
		if err != nil {
			return nil, err
		}
		t := newTable(s, o)
		if err := s.End(o); err != nil {
			return nil, err
		}
		return t, nil
	}
}

func newTable(s *query.Settings, o table.Options) *mongoTable {
	t := &mongoTable{
		keys: s.Domain(o), format: s.ResultFormat(), limit: s.Int("expansion_limit", 10, 0, 1<<30),
		timeout: s.Seconds("timeout", 10*time.Second), dbname: s.Need("dbname"), collection: s.Need("collection"),
		title: s.Where(), warn: o.Warn,
	}
	if text := s.Need("query_filter"); text != "" {
		var err error
		if t.filter, err = parseFilter(text); err != nil {
			s.Fail("query_filter", "%v", err)
		}
	}
	attributes := table.SplitList(s.Text("", "result_attribute"))
	switch projection := s.Text("", "projection"); {
	case projection != "":
		var err error
		if t.projection, err = parseDocument(projection); err != nil {
			s.Fail("projection", "%v", err)
		}
	case len(attributes) == 0:
		s.Fail("result_attribute", "it or projection is required, and neither is set")
	default:
		for _, a := range attributes {
			t.projection = append(t.projection, bson.E{Key: a, Value: 1})
		}
	}
	t.projection = withoutID(t.projection)
	t.connect = t.connector(s, o)
	return t
}

// withoutID is a projection that leaves out what MongoDB adds by itself.
func withoutID(d bson.D) bson.D {
	for _, e := range d {
		if e.Key == "_id" {
			return d
		}
	}
	return append(d, bson.E{Key: "_id", Value: 0})
}

// connector reads the settings of the server. What it returns makes the client, which
// contacts nobody yet but the DNS, for a mongodb+srv URI.
func (t *mongoTable) connector(s *query.Settings, o table.Options) func() (*mongo.Client, error) {
	uri, most := s.Need("uri"), s.Int("max_connections", 10, 1, 1000)
	client := func() *options.ClientOptions {
		return options.Client().SetServerSelectionTimeout(t.timeout).SetMaxPoolSize(uint64(most)).SetMaxConnIdleTime(time.Minute).
			SetServerMonitoringMode("poll").SetAppName("posthaste").SetDialer(&dialer{o.Dial}).ApplyURI(uri)
	}
	if strings.HasPrefix(uri, "mongodb://") {
		if err := client().Validate(); err != nil {
			s.Fail("uri", "%v", secret(err, uri))
		}
	} else if uri != "" && !strings.HasPrefix(uri, "mongodb+srv://") {
		s.Fail("uri", "expected mongodb://host:port/ or mongodb+srv://host/")
	}
	return func() (*mongo.Client, error) {
		c, err := mongo.Connect(client())
		return c, secret(err, uri)
	}
}

// secret is err without what a URI has that nobody is to read.
func secret(err error, uri string) error {
	if err == nil {
		return nil
	}
	hide := []string{uri}
	if u, perr := url.Parse(uri); perr == nil && u.User != nil {
		if password, ok := u.User.Password(); ok && password != "" {
			hide = append(hide, password)
		}
	}
	if _, rest, ok := strings.Cut(uri, "://"); ok { // what no parser takes, but has a password
		if at := strings.LastIndexByte(rest, '@'); at > 0 {
			if _, password, ok := strings.Cut(rest[:at], ":"); ok && password != "" {
				hide = append(hide, password)
			}
		}
	}
	text := err.Error()
	for _, h := range hide {
		text = strings.ReplaceAll(text, h, "...")
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}

// dialer opens connections of which no answer is read without end.
type dialer struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error) // nil: net.Dialer
}

func (d *dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := d.dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	nc, err := dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return lockstep.Bound(nc, query.MaxAnswer), nil
}

// get is the client, connected when it is first wanted.
func (t *mongoTable) get() (*mongo.Client, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, table.ErrClosed
	}
	if t.client == nil {
		c, err := t.connect()
		if err != nil {
			return nil, err
		}
		t.client = c
	}
	return t.client, nil
}

// Lookup implements table.Table.
func (t *mongoTable) Lookup(ctx context.Context, key string) (string, bool, error) {
	key, ok, err := t.keys.Key(ctx, key)
	if err != nil || !ok {
		return "", false, err
	}
	filter, ok := t.filter.query(key)
	if !ok {
		return "", false, nil
	}
	client, err := t.get()
	if err != nil {
		return "", false, query.OneLine(err)
	}
	within, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	found := query.Results{Key: key, Format: t.format, Limit: t.limit}
	if err := t.find(within, client, filter, &found); err != nil {
		if within.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %v: %w", t.timeout, err)
		}
		return "", false, query.OneLine(err)
	}
	value, isFound := found.Answer()
	return value, isFound, nil
}

// find adds what the documents have that match.
func (t *mongoTable) find(ctx context.Context, client *mongo.Client, filter bson.D, found *query.Results) (err error) {
	cursor, err := client.Database(t.dbname).Collection(t.collection).Find(ctx, filter, options.Find().SetProjection(t.projection))
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		if cerr := cursor.Close(closing); err == nil {
			err = cerr
		}
	}()
	for n := 0; cursor.Next(ctx); n++ {
		if n == maxDocuments {
			return fmt.Errorf("more than %d documents are found", maxDocuments)
		}
		elements, err := cursor.Current.Elements()
		if err != nil {
			return err
		}
		for _, e := range elements {
			if err := t.add(e.Key(), e.Value(), found, 0); err != nil {
				return err
			}
		}
	}
	return cursor.Err()
}

// add adds one field's value.
func (t *mongoTable) add(field string, v bson.RawValue, found *query.Results, depth int) error {
	switch v.Type {
	case bson.TypeString:
		return found.Add(v.StringValue())
	case bson.TypeInt32:
		return found.Add(strconv.FormatInt(int64(v.Int32()), 10))
	case bson.TypeInt64:
		return found.Add(strconv.FormatInt(v.Int64(), 10))
	case bson.TypeArray:
		if depth == maxDepth {
			return fmt.Errorf("%s: arrays are more than %d deep", field, maxDepth)
		}
		values, err := v.Array().Values()
		if err != nil {
			return err
		}
		for _, v := range values {
			if err := t.add(field, v, found, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	if t.warn != nil {
		t.warn(fmt.Sprintf("%s: lookup of %q: the field %s has a value of type %s, which is passed over", t.title, found.Key, field, v.Type))
	}
	return nil
}

// Pattern implements table.Table.
func (t *mongoTable) Pattern() bool { return false }

// Close implements table.Table.
func (t *mongoTable) Close() error {
	t.mu.Lock()
	c := t.client
	t.client, t.closed = nil, true
	t.mu.Unlock()
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	return c.Disconnect(ctx)
}
