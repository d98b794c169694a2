package postgres

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/local"
)

// Config says which database to open, and how.
type Config struct {
	// URL is the connection string, as a URL or in the form "host=… dbname=…". It may name several hosts with
	// target_session_attrs=read-write.
	URL string
	// ListenURL is the connection string for notifications, if URL goes through a pooler. Empty: URL.
	ListenURL string
	// Name is the name of this process in the list of leases and in [Status], at most 44 bytes. PostgreSQL cuts the name
	// of an application at 63 bytes, and 19 of them are for other text.
	Name string
	// LeaseTTL is the time for which a lease lasts if it is not renewed. 0 means 15 seconds.
	LeaseTTL time.Duration
	// AllowUnsafe accepts a server that may lose a commit after reporting success.
	AllowUnsafe bool
	// Log gets messages about failures. Nil discards them.
	Log *slog.Logger
}

const (
	defaultLeaseTTL = 15 * time.Second
	// connectFor is the time after which an attempt to connect goes on with the next host, and after which a test of an
	// idle connection fails. It is less than acquireFor, so that a writer reaches the next host if one does not answer.
	connectFor = 3 * time.Second
	// confirmWithin is the time within which the host of a server must confirm (with a TCP acknowledgement) that it
	// received data.
	confirmWithin = 5 * time.Second
)

func (c Config) withDefaults() Config {
	c.LeaseTTL = cmp.Or(c.LeaseTTL, defaultLeaseTTL)
	c.ListenURL = cmp.Or(c.ListenURL, c.URL)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

var (
	// ErrUnsafe means that the server may lose a commit after reporting success.
	ErrUnsafe = errors.New("the settings of the database are not safe")
	// ErrNewerSchema means that a newer version of the program made the tables, and that this version must not use them.
	ErrNewerSchema = errors.New("the tables of the database are of a newer version of this program")
	// ErrMayNotMigrate means that the tables must be made first, and that this user has no right to do it.
	ErrMayNotMigrate = errors.New("the tables of the database must be made, and this user may not do it")
)

// Store is an open database. It implements [store.Store]. Start with [Open].
type Store struct {
	cfg     Config
	id      string // random; names this Store in leases, lanes and notifications
	channel string // the channel of notifications
	log     *slog.Logger
	damage  *engine.DamageLog
	pool    *pgxpool.Pool
	// leasePool has the connection for leases, which must not wait behind reads that use all connections of pool.
	leasePool    *pgxpool.Pool
	listenConfig *pgx.ConnConfig // for the connection of notifications
	writer       *writer
	index        *liveIndex
	begun        sync.Map // from a namespace to the begun of its heads
	watchers     local.Watchers

	stop    context.CancelFunc // ends the listener
	stopped sync.WaitGroup
	closing sync.Once
}

var _ store.Store = (*Store)(nil)

// Open connects to a database, makes or migrates its tables, and loads the card index.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	defer func() { err = classifyOpen(err) }()
	cfg = cfg.withDefaults()
	s := &Store{cfg: cfg, id: rand.Text(), log: cfg.Log, damage: engine.NewDamageLog(cfg.Log, "restore a backup of the database")}
	poolConfig, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("read the connection string of the database: %w", err)
	}
	listenConfig, err := pgxpool.ParseConfig(cfg.ListenURL) // it may have parameters of the pool too
	if err != nil {
		return nil, fmt.Errorf("read the connection string for notifications: %w", err)
	}
	s.listenConfig = listenConfig.ConnConfig
	poolConfig.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { s.prepare(c); return nil }
	if poolConfig.MaxConnLifetime > 5*time.Minute { // so that no connection to a former primary stays
		poolConfig.MaxConnLifetime, poolConfig.MaxConnLifetimeJitter = 5*time.Minute, 30*time.Second
	}
	for _, c := range []*pgx.ConnConfig{poolConfig.ConnConfig, s.listenConfig} {
		c.ConnectTimeout = cmp.Or(c.ConnectTimeout, connectFor)
	}
	poolConfig.ShouldPing, poolConfig.BeforeClose = s.isGone, hangUp
	if s.pool, err = pgxpool.NewWithConfig(ctx, poolConfig); err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	leaseConfig := poolConfig.Copy()
	leaseConfig.MinConns, leaseConfig.MinIdleConns, leaseConfig.MaxConns = 0, 0, 1
	if s.leasePool, err = pgxpool.NewWithConfig(ctx, leaseConfig); err != nil {
		s.pool.Close()
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	defer func() {
		if err != nil {
			s.pool.Close()
			s.leasePool.Close()
		}
	}()
	if err := s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, err := migrate(ctx, c.Conn())
		return err
	}); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := s.openLane(ctx); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	var schema string
	if err := s.query(ctx, "select current_schema()", nil, []any{&schema}, func() error { return nil }); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	s.channel = channelOf(schema)
	s.writer, s.index = newWriter(s), &liveIndex{s: s}
	conn, err := s.connectListener(ctx)
	if errors.Is(err, engine.ErrUnfinished) || errors.Is(err, ErrCopying) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("open the connection to the database for notifications: %w", err)
	}
	if err := s.index.build(ctx); err != nil {
		_ = conn.Close(ctx)
		return nil, fmt.Errorf("load the card index: %w", err)
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.stopped.Go(func() { s.listen(ctx, conn) })
	return s, nil
}

// warning is the key, in the custom data of a connection, of the last warning of the server.
const warning = "agentmesh warning"

// prepare sets what every connection needs. It lets pgx dial only until the connection is open. Otherwise, when pgx
// gives up a connection, it would dial again to cancel the statement, and a commit that waits for a standby would then
// succeed without the standby.
func (s *Store) prepare(c *pgx.ConnConfig) {
	for name, value := range map[string]string{
		"application_name":                    "agentmesh/" + s.cfg.Name,
		"idle_in_transaction_session_timeout": "2000", // a suspended process locks rows no longer than this; a lease lasts longer
		"lock_timeout":                        "5000",
		"jit":                                 "off", // all statements are short
		"enable_seqscan":                      "off", // a plan that was made while tables were small must not stay
		"enable_bitmapscan":                   "off", // a bitmap scan would sort what an index has in order
		"max_parallel_workers_per_gather":     "0",   // a search among a million cards would start two processes
		"plan_cache_mode":                     "force_generic_plan",
	} {
		if _, set := c.RuntimeParams[name]; !set {
			c.RuntimeParams[name] = value
		}
	}
	dialer := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control:         limitUnconfirmed,
	}
	var connected atomic.Bool
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if connected.Load() {
			return nil, errors.New("statements are never canceled")
		}
		return dialer.DialContext(ctx, network, address)
	}
	c.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized == "WARNING" {
			conn.CustomData()[warning] = n.Message
		}
	}
	c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		connected.Store(true)
		return s.checkSettings(ctx, conn)
	}
}

// isGone reports whether a connection that was idle for a second no longer works. If the server does not answer, its
// host may have vanished without ending connections, so isGone gives up all connections of the pool.
func (s *Store) isGone(ctx context.Context, idle pgxpool.ShouldPingParams) bool {
	if idle.IdleDuration < time.Second {
		return false
	}
	limited, cancel := context.WithTimeout(ctx, connectFor)
	defer cancel()
	if idle.Conn.Ping(limited) != nil && ctx.Err() == nil {
		s.pool.Reset()
	}
	return idle.Conn.IsClosed() // a Ping without an answer closes it; then the pool's own test fails at once
}

// hangUp closes the socket of a connection that was given up. Otherwise the pool waits for the server for 15 seconds
// before it opens another connection.
func hangUp(conn *pgx.Conn) {
	if conn.IsClosed() {
		_ = conn.PgConn().Conn().Close()
	}
}

// takeWarning returns the last warning of the server on a connection, or "", and forgets it.
func takeWarning(conn *pgx.Conn) string {
	data := conn.PgConn().CustomData()
	text, _ := data[warning].(string)
	delete(data, warning)
	return text
}

// checkSettings refuses a connection on which a commit is not durable.
func (s *Store) checkSettings(ctx context.Context, conn *pgconn.PgConn) error {
	if s.cfg.AllowUnsafe {
		return nil
	}
	results, err := conn.Exec(ctx, `select name, setting from pg_settings where
		name in ('fsync', 'full_page_writes') and setting = 'off' or name = 'synchronous_commit' and setting in ('off', 'local')`).ReadAll()
	if err != nil {
		return err
	}
	for _, row := range results[0].Rows {
		return fmt.Errorf("%w: %s is %s, and a crash may lose what was acknowledged", ErrUnsafe, row[0], row[1])
	}
	return nil
}

// acquire returns a connection of the pool. It waits at most acquireFor.
func (s *Store) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, acquireFor)
	defer cancel()
	return s.pool.Acquire(ctx)
}

// openLane stores the row of this process in the table lanes. The row has the number of its last committed transaction,
// which tells the outcome if the connection is lost during a commit.
func (s *Store) openLane(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "insert into lanes (id, n, seen) values ($1, 0, now()) on conflict (id) do nothing", s.id)
	return err
}

// forgetLanes removes the rows of other processes that have not written for a long time. Most of them have ended; a
// process that still runs stores its row again.
func (s *Store) forgetLanes(ctx context.Context) {
	err := ask(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, "delete from lanes where seen < now() - $1::interval and id <> $2", forgetLane, s.id)
		return err
	})
	if err != nil {
		s.log.Warn("old rows of lanes not removed; the next start tries again", slog.Any("err", err))
	}
}

// Ping implements [store.Store].
func (s *Store) Ping(ctx context.Context) error {
	return driver{s}.Do(ctx, engine.Call{Check: func(engine.Tx) (func(store.Rev) error, error) { return nil, nil }})
}

// Backup implements [store.Store]. It is not supported, because the server has better tools.
func (s *Store) Backup(context.Context, io.Writer) (int64, error) {
	return 0, fmt.Errorf("%w: back up a PostgreSQL database with pg_dump or pg_basebackup", errors.ErrUnsupported)
}

// Close commits the queued writes, gives the leases of this process back, and ends all connections. Later calls fail
// with store.ErrUnavailable.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.writer.close()
		s.stop()
		s.stopped.Wait()
		s.watchers.Close()
		ctx, cancel := context.WithTimeout(context.Background(), acquireFor)
		defer cancel()
		// If this fails, the leases end by themselves.
		if _, err := s.pool.Exec(ctx, "delete from leases where holder = $1", s.id); err != nil {
			s.log.Warn("leases not given back; they end by themselves", slog.Any("err", err))
		}
		_, _ = s.pool.Exec(ctx, "delete from lanes where id = $1", s.id)
		s.pool.Close()
		s.leasePool.Close()
	})
	return nil
}
