// Package notify tells the owner what happened: a [Notice] is a record that is written in the step that it is about,
// so that none is lost, and then a line in the log and, where one is configured, a run of the owner's command.
//
// A notice carries no text of a message, but for the title, time and place of an agreed event (AM-36). What a peer
// wrote is capped and stripped here, whoever made the notice. It decides nothing and asks nothing: that is acl.Ask.
//
// Start with [New]; put [Box.Change] into the step, register [Box.Committed] as an observer of the store, and run [Box.Run].
package notify
