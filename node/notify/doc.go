// Package notify tells the owner what happened. A [Notice] is stored together with the event that it reports, so that no
// notice is lost. It becomes a line in the log and, if a target is configured, a call of the owner's command or
// webhook.
//
// A notice contains no text of a message, except the title, time and place of an agreed event (AM-36). This package
// shortens and cleans text of peers. A notice asks the owner nothing; questions to the owner are acl.Asks.
//
// Start with [New]; store [Box.Change] together with the event, register [Box.OnCommit] as an observer of the store, and
// run [Box.Run].
package notify
