package engine

import (
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// observeCommits adds the metrics of group commits, and returns the callback that observes each commit.
func observeCommits(m *httpapi.Metrics) func(bolt.Commit) {
	units := m.Histogram("store_commit_units", "Units of work in one commit.", []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024})
	size := m.Histogram("store_commit_bytes", "Bytes of the pages that one commit wrote.",
		[]float64{16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20})
	took := m.Histogram("store_commit_seconds", "Time to write and sync one commit.",
		[]float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2})
	return func(c bolt.Commit) {
		units.Observe(float64(c.Units))
		size.Observe(float64(c.Bytes))
		took.Observe(c.Took.Seconds())
	}
}

// The texts of the metrics that both kinds of databases have.
const (
	queueHelp    = "Units of work that wait for the next commit."
	writableHelp = "1 while the store accepts writes, otherwise 0."
)

func addGauges(m *httpapi.Metrics, s *bolt.Store) {
	m.Gauge("store_queue", queueHelp, func() float64 { return float64(s.Stats().Queued) })
	m.Gauge("store_database_bytes", "Size of the database file.", func() float64 { return float64(s.Stats().FileBytes) })
	m.Gauge("store_free_bytes", "Bytes of the database file in free pages, which are reused before the file grows.", func() float64 { return float64(s.Stats().FreeBytes) })
	m.Gauge("store_writable", writableHelp, func() float64 {
		if s.Stats().Writable {
			return 1
		}
		return 0
	})
}
