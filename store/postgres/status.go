package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Errors of [Open], besides [ErrUnsafe] and [ErrNewerSchema].
var (
	// ErrReadOnly means that the server is a standby or refuses to write for another reason.
	ErrReadOnly = errors.New("the database is read-only, as on a standby")
	// ErrLogin means that the server refused the user, the password or the database.
	ErrLogin = errors.New("the server refused the login")
	// ErrUnreachable means that no server answered.
	ErrUnreachable = errors.New("no database server answers")
)

// classifyOpen adds one of the errors of Open to err, or store.ErrUnavailable, if one applies.
func classifyOpen(err error) error {
	var connecting *pgconn.ConnectError
	switch state := sqlState(err); {
	case err == nil || errors.Is(err, ErrUnsafe) || errors.Is(err, ErrNewerSchema):
		return err
	case state == "25006": // read-only transaction
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	case state == "28P01", state == "28000", state == "3D000": // wrong password, user refused, no such database
		return fmt.Errorf("%w: %w", ErrLogin, err)
	case errors.As(err, &connecting):
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	case state != "" && isUnavailable(err), isBroken(err):
		return asUnavailable(err)
	}
	return err
}

// Status describes the server and the processes that use the tables.
type Status struct {
	// Instances are the names of the connected processes, sorted.
	Instances []string
	// Standbys describes each connected standby.
	Standbys []string
}

// instanceMark returns the end of the application names of the connections that listen on channel, one per process. It
// distinguishes the processes that use these tables from those that use other tables of the same database.
func instanceMark(channel string) string { return "@" + strings.TrimPrefix(channel, "agentmesh_") }

// instancesSQL selects the names of the processes with a mark, sorted.
const instancesSQL = `select substr(application_name, length('agentmesh/') + 1, length(application_name) - length('agentmesh/') - length($1))
	from pg_stat_activity where datname = current_database() and application_name like 'agentmesh/%' || $1 order by 1`

// Status asks the server who is connected. It needs no special rights.
func (s *Store) Status(ctx context.Context) (Status, error) {
	var status Status
	var text string
	err := s.query(ctx, instancesSQL, []any{instanceMark(s.channel)}, []any{&text}, func() error { status.Instances = append(status.Instances, text); return nil })
	if err != nil {
		return status, err
	}
	// Without the role pg_monitor, PostgreSQL shows that there are standbys, and hides everything about them.
	err = s.query(ctx, `select case when state is null then 'details need the role pg_monitor'
		else application_name || ' ' || state || ' ' || sync_state end from pg_stat_replication order by 1`,
		nil, []any{&text}, func() error { status.Standbys = append(status.Standbys, text); return nil })
	return status, err
}

// FeedPosition returns the position of the newest change of a card.
func (s *Store) FeedPosition(ctx context.Context) (uint64, error) {
	stored, err := s.get(ctx, counters, counterChanges)
	return uint64(stored.num), err
}

// Queued returns the number of writes that wait for the next commit.
func (s *Store) Queued() int { return s.writer.queue.Len() }

// Connections returns the number of open connections, without those for notifications and for leases.
func (s *Store) Connections() int { return int(s.pool.Stat().TotalConns()) }
