package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentmesh/agentmesh/store"
)

// mayRepeat reports whether a transaction that failed with err was not committed and may succeed when it runs again.
func mayRepeat(err error) bool {
	if errors.Is(err, errUnknown) {
		return false // pgconn calls every failed read safe to retry, even one after the commit
	}
	if errors.Is(err, errNoLane) || errors.Is(err, errLost) || pgconn.SafeToRetry(err) {
		return true
	}
	switch sqlState(err) {
	case "40001", "40P01", "23505", "55P03": // serialization, deadlock, another process made the row, lock timeout
		return true
	}
	return false
}

// isUnavailable reports whether err comes from the connection or the state of the server, and not from a statement.
func isUnavailable(err error) bool {
	state := sqlState(err)
	for _, class := range []string{ // connection, transaction state, resources, operator, operating system, internal error
		"08", "25", "53", "57", "58", "XX",
	} {
		if strings.HasPrefix(state, class) {
			return true
		}
	}
	return state == "" && !errors.Is(err, errFault) // errFault comes from this process
}

// isBroken reports whether err means that a connection broke, or that the server did not answer in time.
func isBroken(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// sqlState returns the code of an error of the server, or "".
func sqlState(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

// asUnavailable returns err as store.ErrUnavailable.
func asUnavailable(err error) error {
	if err == nil || errors.Is(err, store.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
}

// readError returns the error of a call that reads. If ctx has ended, that is the error of ctx.
func readError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case isRowError(err):
		return err
	}
	return asUnavailable(err)
}

// isRowError reports whether the database answered, but the row is missing or damaged.
func isRowError(err error) bool {
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrDamaged)
}
