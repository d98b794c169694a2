package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/local"
)

// channelOf returns the channel of the notifications of all processes on a schema of a database.
func channelOf(schema string) string {
	return fmt.Sprintf("agentmesh_%08x", crc32.ChecksumIEEE([]byte(schema)))
}

const (
	maxPayload    = 7000             // bytes of encoded hints in a notification; PostgreSQL allows 7,999 in all
	maxPayloads   = 16               // notifications after one commit; if it needs more, one with Lost replaces them all
	listenRetry   = 2 * time.Second  // between attempts to connect; meanwhile, readers read everything again
	listenTimeout = 20 * time.Second // after which the connection is tested
)

// notification is what a process tells the others about a commit.
type notification struct {
	By    string      `json:"by"`              // the id of the process
	Lost  bool        `json:"lost,omitempty"`  // anything may have changed
	Hints [][2]string `json:"hints,omitempty"` // namespace and key of each entry that changed
}

// encodeHints returns the payloads of the notifications with these hints.
func encodeHints(by string, hints []store.Hint) []string {
	if len(hints) == 0 {
		return nil
	}
	var payloads []string
	n, size := notification{By: by}, 0
	seen := make(map[store.Hint]bool)
	for _, h := range hints {
		if seen[h] {
			continue
		}
		seen[h] = true
		hint := [2]string{h.NS, h.Key}
		encoded, _ := json.Marshal(hint) // two strings
		grown := len(encoded) + len(",")
		if !utf8.ValidString(h.NS+h.Key) || strings.ContainsRune(h.NS+h.Key, 0) || grown > maxPayload { // it fits into no notification
			n.Lost = true
			continue
		}
		if size += grown; size > maxPayload {
			payloads = append(payloads, n.encode())
			n, size = notification{By: by, Lost: n.Lost}, grown
		}
		n.Hints = append(n.Hints, hint)
	}
	if payloads = append(payloads, n.encode()); len(payloads) > maxPayloads {
		return []string{notification{By: by, Lost: true}.encode()}
	}
	return payloads
}

func (n notification) encode() string {
	return string(wire.MustMarshal(n))
}

// Watch implements [store.Watcher]. The channel is also closed when the store closes.
func (s *Store) Watch(ctx context.Context, namespaces ...string) <-chan store.Hint {
	return s.watchers.Watch(ctx, nil, namespaces...)
}

// connectListener opens the connection for notifications, which also keeps imports away from the tables.
func (s *Store) connectListener(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, acquireFor)
	defer cancel()
	cfg := s.listenConfig.Copy()
	cfg.RuntimeParams["application_name"] = "agentmesh/" + s.cfg.Name + instanceMark(s.channel)
	s.prepare(cfg)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, "listen "+s.channel)
	if err == nil {
		err = lockShared(ctx, conn)
	}
	if err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// listen passes notifications on to watchers until ctx ends. conn may be nil.
func (s *Store) listen(ctx context.Context, conn *pgx.Conn) {
	for ctx.Err() == nil {
		if conn == nil {
			var err error
			if conn, err = s.connectListener(ctx); err != nil {
				s.log.Warn("no notifications from the database; until they come again, this process rereads its data", slog.Any("err", err))
			}
			s.begun.Clear()
			s.watchers.Lose()
		}
		if conn == nil {
			waiting.Pause(ctx, listenRetry)
			continue
		}
		s.receive(ctx, conn)
		_ = conn.Close(context.WithoutCancel(ctx))
		conn = nil
	}
}

// receive passes notifications on until ctx ends or the connection breaks.
func (s *Store) receive(ctx context.Context, conn *pgx.Conn) {
	ownPrefix := strings.TrimSuffix(notification{By: s.id}.encode(), "}") // how the notifications of this process begin
	for {
		waitCtx, cancel := context.WithTimeout(ctx, listenTimeout)
		got, err := conn.WaitForNotification(waitCtx)
		idle := err != nil && waitCtx.Err() != nil && ctx.Err() == nil
		cancel()
		if idle && !conn.IsClosed() {
			if err = s.ping(ctx, conn); err == nil {
				continue
			}
		}
		if err != nil {
			return
		}
		if strings.HasPrefix(got.Payload, ownPrefix) {
			continue
		}
		var n notification
		if err := json.Unmarshal([]byte(got.Payload), &n); err != nil || n.Lost {
			s.watchers.Lose()
		}
		hints := make([]local.Hint, len(n.Hints))
		for i, h := range n.Hints {
			hints[i] = local.Hint{Hint: store.Hint{NS: h[0], Key: h[1]}, By: local.Remote}
		}
		s.watchers.Tell(hints)
	}
}

func (s *Store) ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, acquireFor)
	defer cancel()
	return conn.Ping(ctx)
}
