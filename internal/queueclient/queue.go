package queueclient

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/service"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
)

// ErrDown says that nobody listens on a service's socket: the mail system is
// not running.
var ErrDown = errors.New("the mail system is down")

const (
	// dialTime is how long a service that is being started may take to answer.
	dialTime = 10 * time.Second
	// page is how many messages are asked for at once.
	page = 500
	// spoolDir is where the spool lies, below the queue directory.
	spoolDir = "spool"
)

// A Queue is a mail system's queue, seen by a tool.
type Queue struct {
	Config *config.Config
	// Storage is the engine that the program has beside the log; nil: none.
	Storage storage.Kind
	clients map[string]*ipc.Client
}

// Open reads the configuration in dir ("" is $MAIL_CONFIG or the default) and
// contacts nobody.
func Open(dir string) (*Queue, error) {
	dir = config.Dir(dir)
	if err := config.Permitted(dir); err != nil {
		return nil, cli.Errorf(cli.ExitConfig, "%w", err)
	}
	cfg, err := config.ReadFor(dir, append(maillog.Parameters(), "mail_owner", "queue_service_name", "cleanup_service_name",
		"authorized_flush_users", "authorized_mailq_users",
		"spool_content_directory", "spool_directories", "spool_directories_absent", "spool_segment_size", "spool_inline_limit", "spool_size_limit",
		"spool_type", "spool_postgresql_url", "spool_postgresql_password_file", "cluster_node_name")...)
	if err != nil {
		return nil, cli.Errorf(cli.ExitConfig, "%w", err)
	}
	return &Queue{Config: cfg, clients: make(map[string]*ipc.Client)}, nil
}

// Close closes connections.
func (q *Queue) Close() {
	for _, c := range q.clients {
		c.Close()
	}
}

// Dir is a path below the queue directory.
func (q *Queue) Dir(parts ...string) string {
	return filepath.Join(append([]string{q.Config.String("queue_directory")}, parts...)...)
}

// Spool is the spool's directory.
func (q *Queue) Spool() string { return q.Dir(spoolDir) }

// Manager is a connection to the queue manager. The error is ErrDown when
// nobody listens there.
func (q *Queue) Manager(ctx context.Context) (*ipc.Conn, error) {
	return q.conn(ctx, "queue_service_name")
}

// Cleanup is a connection to cleanup, with Manager's errors.
func (q *Queue) Cleanup(ctx context.Context) (*ipc.Conn, error) {
	return q.conn(ctx, "cleanup_service_name")
}

// ManagerClient is a client of qmgr's that dials again by itself. It waits for a manager
// that is not there: ask Manager first.
func (q *Queue) ManagerClient() *ipc.Client { return q.client("queue_service_name") }

// CleanupClient is a client of cleanup's that dials again by itself.
func (q *Queue) CleanupClient() *ipc.Client { return q.client("cleanup_service_name") }

func (q *Queue) client(parameter string) *ipc.Client {
	c := q.clients[parameter]
	if c == nil {
		c = ipc.NewClient(ipc.Unix(q.Dir("public", q.Config.String(parameter))), nil)
		q.clients[parameter] = c
	}
	return c
}

// conn finds out first whether anybody listens: the client would wait, since
// to a service an absent peer is one that is being restarted.
func (q *Queue) conn(ctx context.Context, parameter string) (*ipc.Conn, error) {
	c := q.client(parameter)
	nc, err := net.DialTimeout("unix", c.Path(), dialTime)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
		return nil, ErrDown
	case errors.Is(err, fs.ErrPermission):
		return nil, cli.Errorf(cli.ExitNoPerm, "%w", err)
	case err != nil:
		return nil, cli.Errorf(cli.ExitUnavailable, "%w", err)
	}
	nc.Close()
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := c.Conn(ctx)
	if err != nil {
		return nil, cli.Errorf(cli.ExitUnavailable, "%s does not answer: %w", q.Config.String(parameter), err)
	}
	return conn, nil
}

// Each calls f for every message that the queue manager knows, until f
// returns false. Brief listings have no addresses, but say where messages lie.
// While f looks at one page the next is on its way.
func Each(ctx context.Context, conn *ipc.Conn, brief bool, f func(*proto.Item) bool) error {
	return eachPage(ctx, conn, proto.List{N: page, Brief: brief}, f)
}

// eachPage is Each for what q lists, from the beginning.
func eachPage(ctx context.Context, conn *ipc.Conn, q proto.List, f func(*proto.Item) bool) error {
	type answer struct {
		reply proto.ListReply
		err   error
	}
	ask := func(cursor int) <-chan answer {
		ch := make(chan answer, 1)
		want := q
		want.Cursor = cursor
		conn.Go(&want, func(payload []byte, err error) {
			a := answer{err: err}
			if err == nil {
				a.err = a.reply.Decode(payload)
			}
			ch <- a
		})
		return ch
	}
	for next := ask(0); next != nil; {
		var a answer
		select {
		case a = <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
		if a.err != nil {
			return a.err
		}
		if next = nil; a.reply.Next != 0 {
			next = ask(a.reply.Next)
		}
		for i := range a.reply.Items {
			if !f(&a.reply.Items[i]) {
				return nil
			}
		}
	}
	return nil
}

// Reader reads messages where they are kept. A mistake in the configuration, or a program that does not have the
// engine, is an error.
func (q *Queue) Reader() (storage.Reader, error) {
	if !storage.Elsewhere(q.Config) {
		p, err := q.Plan()
		if err != nil {
			return nil, err
		}
		return p.Readers(queueread.Log(spool.NewReader(nil, q.Spool())), queueread.Log), nil
	}
	st, err := storage.Make(q.Storage, q.Config)
	if err != nil {
		return nil, cli.Errorf(cli.ExitConfig, "%w", err)
	}
	return st.Reader(), nil
}

// OnlyLog is an error for what works with the log on the local disk alone: what names the command, or the
// part of it.
func (q *Queue) OnlyLog(what string) error {
	if !storage.Elsewhere(q.Config) {
		return nil
	}
	return cli.Errorf(cli.ExitUnavailable, "%s is for spool_type = log; here it is %s (see posthaste cluster)", what, q.Config.String("spool_type"))
}

// View calls f for each message in the spool of a mail system that is down,
// and writes nothing. Damage is told through warn.
func (q *Queue) View(warn func(string, ...any), f func(queue.Entry) bool) error {
	if err := q.OnlyLog("to read the queue while the mail system is down"); err != nil {
		return err
	}
	if _, err := os.Stat(q.Spool()); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // nothing has been queued yet
		}
		return noPerm(err)
	}
	p, err := q.Plan()
	if err != nil {
		return err
	}
	return noPerm(p.View(nil, warn, func(_ *spools.Place, e queue.Entry) bool { return f(e) }))
}

func noPerm(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return cli.Errorf(cli.ExitNoPerm, "%w", err)
	}
	return err
}

// Permitted says whether this process may change the queue: it is root's, the
// mail owner's, or that of the owner of the queue directory, which is somebody
// else where the whole mail system runs without privileges.
func (q *Queue) Permitted() bool {
	uid := os.Geteuid()
	if uid == 0 {
		return true
	}
	if u, err := user.Lookup(q.Config.String("mail_owner")); err == nil && u.Uid == strconv.Itoa(uid) {
		return true
	}
	owner, ok := fileOwner(q.Dir())
	return ok && owner.UID == uid
}

// BecomeOwner makes a process of root's that of the spool's owner, for good:
// what root writes into the spool the mail system could not read.
func (q *Queue) BecomeOwner() error {
	if os.Geteuid() != 0 {
		return nil
	}
	owner, ok := fileOwner(q.Spool())
	if !ok || owner.UID == 0 {
		return nil // nothing there, or a mail system that is root's own
	}
	return owner.Become()
}

func fileOwner(path string) (*service.Account, bool) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, false
	}
	a := &service.Account{Name: "#" + strconv.Itoa(int(sys.Uid)), UID: int(sys.Uid), GID: int(sys.Gid)}
	return a, true
}

// Readable says why the spool cannot be read by this process, if so.
func (q *Queue) Readable() error {
	_, err := os.ReadDir(q.Spool())
	if errors.Is(err, fs.ErrNotExist) {
		if _, qerr := os.ReadDir(q.Dir()); qerr == nil {
			return nil
		}
	}
	return err
}
