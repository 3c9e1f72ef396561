package pgspool

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"posthaste/internal/config"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

const (
	// connectTime bounds how long a server may take to let us in.
	connectTime = 2 * time.Second
	// maxReaders bounds the connections that a process reads with, and idleReader is how long one is kept
	// that nobody needs.
	maxReaders = 6
	idleReader = 30 * time.Second
	// pingTime bounds how long one that was idle may take to show that it still works, before another one is made: less than anybody
	// has who reads.
	pingTime = time.Second
	// defaultSchema is where the tables are, unless the URL sets search_path.
	defaultSchema = "posthaste"
)

// A Store implements storage.Store: the queue in one database, for one node.
type Store struct {
	config   *pgx.ConnConfig
	node     string // cluster_node_name
	instance string // tells two installations apart that have the same name
	plant    plant  // empty but in tests
	// wall is the node's clock, where it is not the real one; nil: it is
	wall  func() time.Time
	pause func() // between the pages of a shard that is read, in a simulation; nil: none
	older bool   // it is, in a simulation, one that does not know of the newest tables

	settings    []settingDigest // what main.cf sets
	lease       time.Duration   // cluster_lease_time; 0: defaultLeaseTime
	segmentSize int64           // octets after which the next segment begins
	page        int             // rows of a shard that are read before their messages are given out; 0: pageRows
	unsure      int             // deliveries of a shard that are named because of lost records; 0: maxUnsure

	exchanging sync.Mutex // held during an exchange of shares
	views      views

	mu   sync.Mutex
	pool *pgxpool.Pool    // nil: nobody has read yet
	done bool             // it is closed
	last map[uint32]int64 // the epochs in which this process last had shards, as long as its queue has been open with them only
	once bool             // the queue has been open
	// untold are shards of which a reading has found something to be in doubt, because of lost records, and cleanup may not have heard of it: the table of doubts has
	// it, or may have it, so that to the next reading it would be nothing new.
	untold map[uint32]bool
}

// setUntold notes whether there may be something in doubt that cleanup has not heard of.
func (s *Store) setUntold(shard uint32, untold bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.untold == nil {
		s.untold = map[uint32]bool{}
	}
	s.untold[shard] = untold
}

// isUntold says whether there may be.
func (s *Store) isUntold(shard uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.untold[shard]
}

// opened notes that the queue is open with these shards, of which some have been read to their ends: cleanup hears what was found there. What agents say of the mail in others is lost from now on: when they come
// back, what was in hand is doubtful, whoever had them.
func (s *Store) opened(shards []*taken, whole []*shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.once = true
	for _, sh := range whole {
		delete(s.untold, sh.id)
	}
	maps.DeleteFunc(s.last, func(id uint32, _ int64) bool {
		return !slices.ContainsFunc(shards, func(t *taken) bool { return t.id == id })
	})
}

// beforeOpen says whether the queue has not been open in this process yet.
func (s *Store) beforeOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.once
}

// unremember notes that a shard that was taken beside the open queue is none that this process goes on with.
func (s *Store) unremember(t *taken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.last, t.id)
}

// had says whether this process had a shard in that epoch.
func (s *Store) had(shard uint32, epoch int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.last[shard]
	return ok && last == epoch
}

// remember notes that this process has a shard.
func (s *Store) remember(t *taken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[uint32]int64{}
	}
	s.last[t.id] = t.epoch
}

// Kind implements storage.Kind.
func Kind(cfg *config.Config) (storage.Store, error) { return New(cfg) }

// New makes a Store of what main.cf says. It contacts nobody. It reads the password file, which only root
// may be able to.
func New(cfg *config.Config) (*Store, error) {
	c, err := parseURL(cfg.String("spool_postgresql_url"))
	if err != nil {
		return nil, fmt.Errorf("spool_postgresql_url: %w", err)
	}
	if file := cfg.String("spool_postgresql_password_file"); file != "" {
		if c.Password, err = readPassword(file); err != nil {
			return nil, fmt.Errorf("spool_postgresql_password_file: %w", err)
		}
	}
	node := cfg.String("cluster_node_name")
	// By this name a takeover finds the sessions of a node that is dead.
	c.RuntimeParams["application_name"] = sessionName(node)
	if node == "" {
		return nil, errors.New("cluster_node_name is empty")
	}
	machine, _ := os.ReadFile("/etc/machine-id") // where there is none, the path has to do
	return &Store{config: c, node: node, settings: digestSettings(cfg), instance: strings.TrimSpace(string(machine)) + ":" + cfg.String("queue_directory"),
		lease: cfg.Duration("cluster_lease_time"), segmentSize: cfg.Bytes("spool_segment_size")}, nil
}

// sessionName is the application_name of a node's sessions, which the server cuts at 63 octets.
func sessionName(node string) string {
	name := "posthaste " + node
	return name[:min(len(name), 63)]
}

// errURL does not repeat the URL, which may have a password in it after all.
var errURL = errors.New("want postgres://user@host:port/database?option=value, such as sslmode=verify-full")

// parseURL reads the parameter. What it leaves open is what libpq's environment variables say, and then what is
// safe here.
func parseURL(url string) (*pgx.ConnConfig, error) {
	if !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") {
		return nil, errURL
	}
	if account, _, ok := strings.Cut(url, "@"); ok && strings.Count(account, ":") > 1 || strings.Contains(url, "password=") {
		return nil, errors.New("a password does not belong into main.cf, which everybody may read: use spool_postgresql_password_file")
	}
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errURL
	}
	if c.TLSConfig != nil && c.TLSConfig.RootCAs == nil {
		// They are read once, when they are first asked for: inside chroot they would be out of sight.
		_, _ = x509.SystemCertPool() // who needs them says what is wrong
	}
	if c.RuntimeParams["search_path"] == "" {
		c.RuntimeParams["search_path"] = defaultSchema
	}
	// Transactions of ours never wait for us: one that does belongs to a machine that hangs.
	c.RuntimeParams["idle_in_transaction_session_timeout"] = "5s"
	c.RuntimeParams["standard_conforming_strings"] = "on"
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTime
	}
	c.DialFunc = dial
	// Of several hosts the one counts that can be written: the others are standbys.
	if c.ValidateConnect == nil {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return c, nil
}

// maxPassword bounds the password file.
const maxPassword = 4096

// readPassword reads the first line of a file.
func readPassword(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, maxPassword)
	n, err := f.Read(b)
	if err != nil || n == maxPassword {
		return "", fmt.Errorf("%s: no password in it", path)
	}
	line, _, _ := strings.Cut(string(b[:n]), "\n")
	return strings.TrimRight(line, "\r"), nil
}

// connect opens a connection that is not the pool's. The error is queue.ErrBroken.
func (s *Store) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, s.config.Copy())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", queue.ErrBroken, clean(err))
	}
	if v := conn.PgConn().ParameterStatus("server_version"); !newEnough(v) {
		conn.Close(ctx)
		return nil, fmt.Errorf("PostgreSQL %s is too old: version 15 or later is needed", v)
	}
	return conn, nil
}

// newEnough says whether a server's version, such as "15.14 (Debian ...)", will do.
func newEnough(version string) bool {
	var major int
	_, err := fmt.Sscanf(version, "%d", &major)
	return err != nil || major >= 15
}

// clean is err without what the library says of how it connects: that has the name of the account in it.
func clean(err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return fmt.Errorf("the database says: %s (%s)", e.Message, e.Code)
	}
	if e, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return fmt.Errorf("no connection to the database: %w", e.Unwrap())
	}
	return err
}

// readers is the pool that everybody reads with.
func (s *Store) readers() (*pgxpool.Pool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.done:
		return nil, queue.ErrClosed
	case s.pool != nil:
		return s.pool, nil
	}
	c, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, err
	}
	c.ConnConfig, c.MaxConns, c.MaxConnIdleTime, c.PingTimeout = s.config.Copy(), maxReaders, idleReader, pingTime
	if s.pool, err = pgxpool.NewWithConfig(context.Background(), c); err != nil { // connects to nobody yet
		return nil, fmt.Errorf("%w: %w", queue.ErrUnread, clean(err))
	}
	return s.pool, nil
}

// ask has f ask for something over a connection of the pool, once more when that turns out to be lost: the
// others in the pool are most often from before the server was started again, too.
func (s *Store) ask(f func(context.Context, *pgx.Conn) error) error {
	pool, err := s.readers()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	for again := false; ; again = true {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		err = f(ctx, conn.Conn())
		lost := conn.Conn().IsClosed()
		conn.Release()
		if err == nil || !lost || again {
			return err
		}
		pool.Reset()
	}
}

// Close implements storage.Store. Readers that it has given cannot read any more.
func (s *Store) Close() {
	s.mu.Lock()
	pool := s.pool
	s.pool, s.done = nil, true
	s.mu.Unlock()
	if pool != nil {
		pool.Close() // waits for those that read
	}
}
