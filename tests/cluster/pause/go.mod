module specmodel.dev/pause

go 1.26
