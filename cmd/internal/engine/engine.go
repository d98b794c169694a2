// Package engine opens the database that the configuration names, a file or PostgreSQL, and describes it to the
// operator. Start with [Open].
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/postgres"
)

// leaseTTL is how long a lease lasts on PostgreSQL, so that another process takes over within five seconds (decision
// 57).
const leaseTTL = 3 * time.Second

// Options names the database of a process.
type Options struct {
	Config  config.Config
	Source  config.Source
	Dir     datadir.Dir
	Metrics *httpapi.Metrics // gets the gauges of the database
	Logger  *slog.Logger
}

// Open opens the database in the configuration, and records this process as the user of the data directory until the
// caller calls release. The error has an exit code.
func Open(ctx context.Context, o Options) (s store.Store, release func(), err error) {
	if o.Config.Store.Postgres != "" {
		return o.openPostgres(ctx)
	}
	if o.Dir.HasLostDatabase() {
		o.Logger.Warn("the database is missing, so a new, empty one is made", "path", o.Dir.Path(datadir.FileDatabase))
	}
	minFree := cmp.Or(int64(o.Config.MinFreeDisk), -1) // no limit
	db, release, err := o.Dir.OpenStore(ctx, bolt.Config{Logger: o.Logger, MinFree: minFree, Committed: observeCommits(o.Metrics)})
	if err != nil {
		return nil, nil, err
	}
	addGauges(o.Metrics, db)
	return db, release, nil
}

func (o Options) openPostgres(ctx context.Context) (store.Store, func(), error) {
	cfg, err := o.postgresConfig()
	if err != nil {
		return nil, nil, err
	}
	if o.Dir.HasDatabase() {
		o.Logger.Warn("the data directory has a database of its own, which is not used, because store.postgres is set", "path", o.Dir.Path(datadir.FileDatabase))
	}
	db, release, err := o.Dir.OpenPostgres(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	o.Metrics.Gauge("store_queue", queueHelp, func() float64 { return float64(db.Queued()) })
	o.Metrics.StoreGauge("store_writable", writableHelp, func(ctx context.Context) (float64, error) {
		if db.Ping(ctx) != nil {
			return 0, nil
		}
		return 1, nil
	})
	o.Metrics.Gauge("store_connections", "Open connections to PostgreSQL, without the one for notifications.", func() float64 { return float64(db.Connections()) })
	return db, release, nil
}

func (o Options) postgresConfig() (postgres.Config, error) {
	url, err := o.Source.ConnectionString("store.postgres", o.Config.Store.Postgres)
	if err != nil {
		return postgres.Config{}, exit.Fail(exit.Config, err)
	}
	listenURL, err := o.Source.ConnectionString("store.listen_url", o.Config.Store.ListenURL)
	if err != nil {
		return postgres.Config{}, exit.Fail(exit.Config, err)
	}
	return postgres.Config{
		URL: url, ListenURL: listenURL, Name: instanceName(), LeaseTTL: leaseTTL, AllowUnsafe: o.Config.Store.AllowUnsafe, Log: o.Logger,
	}, nil
}

func instanceName() string {
	host, _ := os.Hostname() // the number of the process still distinguishes processes of one machine
	return nameInstance(host, os.Getpid())
}

// nameInstance returns the name of a process on a host. PostgreSQL cuts long names. Of a long host name, nameInstance
// keeps the beginning, where machines of one domain differ, and the end, where pods of one deployment differ.
func nameInstance(host string, pid int) string {
	host = cmp.Or(strings.ReplaceAll(host, "@", "_"), "unknown")
	if len(host) > 32 {
		host = host[:16] + host[len(host)-16:]
	}
	return fmt.Sprintf("%s:%d", host, pid)
}

// CheckIndex compares the card index in memory with a database file. The index of PostgreSQL is not checked.
func CheckIndex(ctx context.Context, s store.Store) error {
	if db, ok := s.(interface{ CheckIndex(context.Context) error }); ok {
		return db.CheckIndex(ctx)
	}
	return nil
}

// FeedPosition returns a function that returns the newest position of the change feed, or nil for a database file.
func FeedPosition(s store.Store) func(context.Context) (uint64, error) {
	if db, ok := s.(*postgres.Store); ok {
		return db.FeedPosition
	}
	return nil
}

// Status returns the processes, leases and standbys of a database that several processes may share. It returns nil for
// a database file.
func Status(ctx context.Context, s store.Store) *httpapi.DatabaseStatus {
	db, ok := s.(*postgres.Store)
	if !ok {
		return nil
	}
	out := &httpapi.DatabaseStatus{Engine: "postgresql", Self: instanceName()}
	found, err := db.Status(ctx)
	var leases []store.LeaseState
	if err == nil {
		leases, err = db.Leases().List(ctx)
	}
	if err != nil {
		out.Error = err.Error()
		return out
	}
	// The lists are [] in JSON, never null.
	out.Instances, out.Standbys = append([]string{}, found.Instances...), append([]string{}, found.Standbys...)
	out.Leases = []httpapi.LeaseStatus{}
	for _, l := range leases {
		out.Leases = append(out.Leases, httpapi.LeaseStatus{Name: l.Name, Holder: l.Holder, Until: l.Until})
	}
	return out
}

// BackupUnsupported returns the error text for a backup of a PostgreSQL database.
func BackupUnsupported() string {
	return "a backup copies a database file, and store.postgres names a PostgreSQL database; " + insteadOf["backup"]
}

// insteadOf says what to do on PostgreSQL instead of each command that works on a database file.
var insteadOf = map[string]string{
	"backup":  "back up the database with pg_dump or pg_basebackup, and the files of the data directory",
	"restore": "restore the database with psql or pg_restore, and copy the files of the data directory",
	"check":   "check the server with pg_amcheck, and this process with agentmesh doctor",
	"compact": "autovacuum reuses free space; VACUUM FULL returns it to the disk",
}

// RequireFile returns an error if the configuration names a PostgreSQL database, because the given command works only
// on a database file. It accepts a configuration that cannot be read, because these commands help after an accident.
func RequireFile(src config.Source, command string) error {
	if cfg, err := config.Load(src); err != nil || cfg.Store.Postgres == "" {
		return nil
	}
	return exit.FailHint(exit.Config, errors.New(command+" works on a database file, and store.postgres names a PostgreSQL database"), insteadOf[command])
}

// Describe describes the instances, leases and standbys of a shared database, one line each. It returns nothing
// for a database file.
func Describe(s *httpapi.DatabaseStatus) (lines []string) {
	switch {
	case s == nil:
		return nil
	case s.Error != "":
		return []string{"PostgreSQL, state unknown: " + s.Error}
	}
	lines = []string{fmt.Sprintf("PostgreSQL, this is %s, %d connected: %s", s.Self, len(s.Instances), strings.Join(s.Instances, ", "))}
	for _, l := range s.Leases {
		lines = append(lines, fmt.Sprintf("%s holds the lease %s until %s", l.Holder, l.Name, l.Until.Format(time.RFC3339)))
	}
	if len(s.Standbys) == 0 {
		return append(lines, "no standby is connected to the server")
	}
	return append(lines, "standbys: "+strings.Join(s.Standbys, "; "))
}
