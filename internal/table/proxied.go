package table

import (
	"context"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

// DefaultProxy is where the proxymap service is, from the queue directory,
// which is the working directory of all services.
const DefaultProxy = "private/proxymap"

// proxiedSpec finds the names of tables of the types that proxymap has. What
// looks like the URL of a server is no table, nor is unix: with a socket's path.
var proxiedSpec = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[\s,{=:!])((?:ldap|memcache|mongodb|mysql|pgsql|sqlite):(?:/[^/\s,{}]|[^/\s,{}])[^\s,{}]*|unix:(?:passwd|group)\.byname)`)
})

// Proxied lists the tables, type:name, in a setting or an argument that the
// proxymap service is asked for: by all, or, of the type unix, by those inside chroot.
func Proxied(text string) (specs []string) {
	for _, m := range proxiedSpec().FindAllStringSubmatch(text, -1) {
		specs = append(specs, m[1])
	}
	return specs
}

// proxiedTable is a table that the proxymap service is asked for: ldap, memcache,
// mongodb, mysql, pgsql and sqlite, as it has the connections.
type proxiedTable struct {
	spec, file string
	opt        Options
	client     *ipc.Client
}

// reachTimeout is how long proxymap may take to be there: it is started by the
// first that asks.
const reachTimeout = 20 * time.Second

// openProxied is newProxied for a table of a database. Its settings are proxymap's to read,
// but that their file is there is known now: not only when the first question is asked.
func openProxied(kind, name string, o Options) (Table, error) {
	if strings.HasPrefix(name, "/") {
		if _, err := os.Stat(name); err != nil {
			return nil, err
		}
	}
	return newProxied(kind, name, o), nil
}

func newProxied(kind, name string, o Options) *proxiedTable {
	path := o.Proxy
	if path == "" {
		path = DefaultProxy
	}
	return &proxiedTable{spec: kind + ":" + name, file: name, opt: o, client: ipc.NewClient(ipc.Unix(path), nil)}
}

func (t *proxiedTable) Lookup(ctx context.Context, key string) (string, bool, error) {
	question := &proto.Lookup{Table: t.spec, Key: key, NoFold: t.opt.NoFold}
	answers := scopeOf(ctx).answers
	if known := answers.find(question); known != nil {
		return known.Value, known.Found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.opt.timeout())
	defer cancel()
	reach, done := context.WithTimeout(ctx, reachTimeout)
	_, err := t.client.Conn(reach)
	done()
	if err != nil {
		return "", false, err
	}
	var reply proto.LookupReply
	if err = t.client.CallAgain(ctx, question, &reply); err == nil {
		answers.keep(question, &reply)
	}
	return reply.Value, reply.Found, err
}

// Pattern is false: a database has keys, and is asked for parts of addresses too.
func (t *proxiedTable) Pattern() bool { return false }

// Owner is that of the file with the table's settings; a table in main.cf is
// the superuser's.
func (t *proxiedTable) Owner() (int, bool) {
	if t.file[0] != '/' && t.file[0] != '.' {
		return 0, true
	}
	fi, err := os.Stat(t.file)
	if err != nil {
		return 0, false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

func (t *proxiedTable) Close() error {
	t.client.Close()
	return nil
}
