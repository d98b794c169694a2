package acl

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// AuditFilter narrows a list. A zero field matches everything.
type AuditFilter struct {
	Kind    AuditKind
	Subject string
	Since   time.Time
	Newest  bool // in the reverse order, the newest first
}

func (f AuditFilter) matches(e AuditEntry) bool {
	last := e.At
	if e.Until.After(last) {
		last = e.Until
	}
	return (f.Kind == "" || e.Kind == f.Kind) && (f.Subject == "" || e.Subject == f.Subject) && !last.Before(f.Since)
}

// List returns at most limit entries that match f, oldest first. It first calls [Audit.Seal], so that the list has all
// stored entries. For the first page, after is 0, and for every other page, it is the value next of the page before.
// On the last page, next is 0.
func (a *Audit) List(ctx context.Context, f AuditFilter, after uint64, limit int, now time.Time) (list []AuditEntry, next uint64, err error) {
	if err := a.Seal(ctx); err != nil {
		return nil, 0, err
	}
	term := ""
	switch {
	case f.Subject != "":
		term = "subject:" + f.Subject
	case f.Kind != "":
		term = "kind:" + string(f.Kind)
	}
	const pageSize = 500
	key, read := "", a.records.List
	if f.Newest {
		read = a.records.ListBackward
	}
	if after > 0 {
		key = auditKey(after)
	}
	for {
		page, err := read(ctx, nsAudit, term, key, pageSize, now)
		if err != nil {
			return nil, 0, fmt.Errorf("list audit log: %w", err)
		}
		for _, rec := range page.Records {
			e, err := store.Decode[AuditEntry](rec)
			if err != nil {
				return nil, 0, err
			}
			if !f.matches(e) {
				continue
			}
			if len(list) == limit {
				return list, list[limit-1].N, nil
			}
			list = append(list, e)
		}
		if key = page.Next; key == "" {
			return list, 0, nil
		}
	}
}

// AuditSpan is a verified part of the log.
type AuditSpan struct {
	First, Last uint64 // numbers of the first and the last entry; 0 if the part is empty
	Prev, Hash  string // hash of the entry before the first, and hash of the last entry
}

// ErrAuditChain means that the log was changed after it was written.
var ErrAuditChain = errors.New("acl: the audit log is broken")

const maxAuditLine = 64 << 10 // bytes

// VerifyAudit checks an exported log, one entry per line: every entry must have its number, its hash, and the hash of
// the previous entry. VerifyAudit needs no store and no key. It cannot detect entries missing before the first line or
// after the last: compare the span with one stored elsewhere.
func VerifyAudit(r io.Reader) (AuditSpan, error) {
	var span AuditSpan
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxAuditLine)
	for line := 1; lines.Scan(); line++ {
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		tree, err := wire.ParseObject(text)
		if err != nil {
			return span, fmt.Errorf("%w: line %d: %w", ErrAuditChain, line, err)
		}
		var e AuditEntry
		if err := json.Unmarshal(tree.JSON(), &e); err != nil {
			return span, fmt.Errorf("%w: line %d: %w", ErrAuditChain, line, err)
		}
		switch sum := fmt.Sprintf("%x", signing.Digest(tree.Without("hash"))); {
		case e.N == 0:
			return span, fmt.Errorf("%w: line %d: the entry has no number", ErrAuditChain, line)
		case span.Last > 0 && e.N != span.Last+1:
			return span, fmt.Errorf("%w: line %d: entry %d follows entry %d", ErrAuditChain, line, e.N, span.Last)
		case span.Last > 0 && e.Prev != span.Hash:
			return span, fmt.Errorf("%w: line %d: entry %d does not continue the previous entry", ErrAuditChain, line, e.N)
		case e.N == 1 && e.Prev != strings.Repeat("0", 64):
			return span, fmt.Errorf("%w: line %d: the first entry names an entry before it", ErrAuditChain, line)
		case e.Hash != sum:
			return span, fmt.Errorf("%w: line %d: entry %d was changed", ErrAuditChain, line, e.N)
		}
		if span.Last == 0 {
			span.First, span.Prev = e.N, e.Prev
		}
		span.Last, span.Hash = e.N, e.Hash
	}
	if err := lines.Err(); err != nil {
		return span, fmt.Errorf("read audit log: %w", err)
	}
	return span, nil
}
