package config

import (
	"errors"
	"net/url"
	"regexp"
	"strings"
)

// Store selects the database. Without postgres, it is the file agentmesh.db in the data directory.
type Store struct {
	// The connection string of a PostgreSQL database, as a URL or as "host=… dbname=…", without a password; or file:PATH
	// for a file that contains only the connection string, with or without a password. PGPASSFILE, PGPASSWORD and the
	// other variables of PostgreSQL's clients also apply. Several processes may use one database. Empty: agentmesh.db.
	Postgres Connection `key:"postgres"`
	// A connection string for notifications, in the same forms, if postgres leads through a pooler such as PgBouncer,
	// which does not pass notifications on. Empty: the same as postgres.
	ListenURL Connection `key:"listen_url"`
	// A file with an age identity. It encrypts the agent's keys in the PostgreSQL database, from which all instances
	// take them. Give every instance the same file. "agentmesh keys generate --kind age FILE" makes one. If the file
	// has several identities, one per line, the first encrypts and all decrypt. Danger: anyone who has both the database
	// and this file can act as the agent. Empty: the keys are only in the data directory, and must be copied to other
	// instances.
	KeyFile string `key:"key_file"`
	// Accept a server with fsync, full_page_writes or synchronous_commit off. Danger: after a crash of the server,
	// acknowledged messages are lost, and a message that was received once is accepted again.
	AllowUnsafe bool `key:"allow_unsafe"`
}

// Connection is the connection string of a PostgreSQL database, or file:PATH of a file that contains it. It holds no
// password, because other users see a command's arguments, and backups and versions keep a configuration.
type Connection string

// UnmarshalText implements [encoding.TextUnmarshaler].
func (c *Connection) UnmarshalText(text []byte) error {
	*c = Connection(text)
	return c.checkPassword()
}

// checkPassword returns an error if the connection string contains a password. The error does not quote the text.
func (c Connection) checkPassword() error {
	text := string(c)
	if strings.HasPrefix(text, filePrefix) {
		return nil
	}
	u, err := url.Parse(text)
	hasPassword := passwordWord.MatchString(text)
	if c.isURL() && err == nil && u.User != nil {
		_, inUser := u.User.Password()
		hasPassword = hasPassword || inUser
	}
	if hasPassword {
		return errors.New("contains a password: write the connection string into a file and name it with file:PATH, or use PGPASSFILE")
	}
	return nil
}

func (c Connection) isURL() bool {
	return strings.HasPrefix(string(c), "postgres://") || strings.HasPrefix(string(c), "postgresql://")
}

// filePrefix begins a setting that names the file with a connection string.
const filePrefix = "file:"

// passwordWord matches a password in a connection string of the form "host=… password=…", or in the query of a URL.
var passwordWord = regexp.MustCompile(`(?i)(^|[\s?&])(ssl)?password\s*=`)

func (c Store) check(p *problems) {
	for key, text := range map[string]Connection{"store.postgres": c.Postgres, "store.listen_url": c.ListenURL} {
		if text == "" || strings.HasPrefix(string(text), filePrefix) {
			continue
		}
		_, err := url.Parse(string(text))
		if password := text.checkPassword(); password != nil {
			p.add(key, password.Error())
		} else if text.isURL() && err != nil || !text.isURL() && !strings.Contains(string(text), "=") {
			p.add(key, `must be postgres://…, "host=… dbname=…" or file:PATH`) // without the text, which may hold a password
		}
	}
	if c.Postgres == "" && (c.ListenURL != "" || c.KeyFile != "" || c.AllowUnsafe) {
		p.add("store", "listen_url, key_file and allow_unsafe need postgres")
	}
}

// ConnectionString returns the connection string for a setting of [Store]. If text is file:PATH, it reads the
// connection string from that file. key is the configuration key of text, for errors.
func (s Source) ConnectionString(key string, text Connection) (string, error) {
	name, isFile := strings.CutPrefix(string(text), filePrefix)
	if !isFile {
		return string(text), nil
	}
	return s.Secret(key, name)
}
